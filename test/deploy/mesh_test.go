// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// proxyUser is the user of the pod's proxy.
const proxyUser = 1337

// proxyConfig is haproxy's, which carries connections to their original destination.
const proxyConfig = `
global
	log stdout format raw daemon
defaults
	log global
	mode tcp
	option tcplog
	timeout connect 10s
	timeout client 60s
	timeout server 60s
	option transparent
frontend all
	bind 0.0.0.0:15001
	bind 0.0.0.0:15006
	default_backend original
backend original
	option transparent
`

// meshes: a pod's connections go to its proxy, and the commands in the container show it. The container may not change
// its user, so it does not connect as the proxy.
func (n *labNode) meshes(t *testing.T) {
	n.stop()
	pod, settings := n.server.Lab.Host("a1"), n.settings
	n.settings += fmt.Sprintf("mesh:\n  cgroups: [%s]\n  sockmap: true\n", n.inContainer(pod.Cgroup))
	n.startProxy(pod)
	must(t, n.start())
	defer func() {
		n.stop()
		n.settings = settings
		must(t, n.start())
	}()
	eventually(t, "beeline mesh status shows the pod as served", func() error {
		out, err := n.runc("exec", n.id, "beeline", "mesh", "status")
		if err == nil && !strings.Contains(out, "served") {
			err = fmt.Errorf("it prints %s", out)
		}
		return err
	})
	n.wantWays(pod, mesh.ByProxy, mesh.Untried, mesh.ByProxy)
	n.wantAnswer("a1", clusterIP(20), "b1")
	status, err := n.agent.Status()
	must(t, err)
	for _, c := range status.Conditions {
		if c.Code == condition.MeshSockmapUnavailable.Code && !strings.Contains(c.Message, "SIOCINQ") { // many kernels
			t.Error(c)
		}
	}
}

// inContainer is the path of a cgroup of the node in the container.
func (n *labNode) inContainer(cgroup string) string {
	mounts := n.pod.Containers[0].VolumeMounts
	i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == "cgroup" })
	return filepath.Join(mounts[i].MountPath, strings.TrimPrefix(cgroup, n.host.CgroupRoot))
}

// startProxy starts a proxy in a pod.
func (n *labNode) startProxy(pod *lab.Host) {
	n.t.Helper()
	folder, err := os.MkdirTemp("", "beeline-deploy-proxy-") // those of testing.T are closed to other users
	must(n.t, err)
	n.t.Cleanup(func() { os.RemoveAll(folder) })
	config := filepath.Join(folder, "haproxy.cfg")
	n.write(config, proxyConfig)
	must(n.t, os.Chown(folder, proxyUser, proxyUser))
	must(n.t, os.Chown(config, proxyUser, proxyUser))
	ctx, cancel := context.WithCancel(context.Background())
	log := &node.Log{}
	cmd := pod.Command(ctx, "haproxy", "-db", "-f", config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
	must(n.t, cmd.Start())
	n.t.Cleanup(func() {
		cancel()
		cmd.Wait()
		if n.t.Failed() {
			n.t.Logf("haproxy printed:\n%s", log)
		}
	})
}

// wantWays has the container prove the ways of a pod's connections: of an application, of the proxy and from the node.
func (n *labNode) wantWays(pod *lab.Host, want ...string) {
	n.t.Helper()
	out, err := n.runc("exec", n.id, "beeline", "mesh", "verify", "--output", "json", n.inContainer(pod.Cgroup))
	must(n.t, err)
	var findings struct{ Items []mesh.Finding }
	must(n.t, json.Unmarshal([]byte(out), &findings))
	var got []string
	for _, f := range findings.Items {
		got = append(got, f.Way)
	}
	if !slices.Equal(got, want) {
		n.t.Errorf("the connections take the ways %q, want %q: %s", got, want, out)
	}
}
