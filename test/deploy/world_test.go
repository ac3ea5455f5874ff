// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// labNode is a node of a lab with a container of the DaemonSet.
type labNode struct {
	t      *testing.T
	host   *lab.Host
	server *server
	// agent starts runc instead of the program, and has the same sockets and pins.
	agent *node.Agent
	log   *node.Log
	token string

	bundle, id string
	image      v1.Image
	pod        *corev1.PodSpec
	settings   string
	// bpf replaces the node's BPF file system.
	bpf string
}

// container prepares the DaemonSet's container on a node. It is in the lab's cgroups, so it ends with the lab.
func (s *server) container(t *testing.T, host *lab.Host, image v1.Image) *labNode {
	t.Helper()
	for _, program := range []string{"runc", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v (scripts/setup installs it)", err)
		}
	}
	daemonSet := find[appsv1.DaemonSet](t, s.manifests, "DaemonSet", "beeline")
	n := &labNode{
		t: t, host: host, server: s, bundle: filepath.Join(host.Dir, "container"), id: "beeline", image: image,
		pod: &daemonSet.Spec.Template.Spec, settings: find[corev1.ConfigMap](t, s.manifests, "ConfigMap", "beeline-settings").Data["beeline.yaml"],
		token: s.token(t, "beeline"), log: &node.Log{},
	}
	n.unpack(t)
	n.agent = &node.Agent{Host: host, Program: beeline, Log: n.log, Wrap: n.runcCommand("run", "--bundle", n.bundle, n.id)}
	t.Cleanup(n.remove)
	return n
}

// unpack makes the container's folder, with the image's files.
func (n *labNode) unpack(t *testing.T) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(n.bundle, "config"), 0o755))
	must(t, os.MkdirAll(filepath.Join(n.bundle, "account"), 0o755))
	must(t, unpack(n.image, filepath.Join(n.bundle, "rootfs")))
}

// configure writes what the runtime gets for the pod.
func (n *labNode) configure() {
	n.t.Helper()
	config, err := n.image.ConfigFile()
	must(n.t, err)
	env := map[string]string{"NODE_NAME": n.host.Name}
	if c := &n.pod.Containers[0]; len(c.EnvFrom) > 0 {
		maps.Copy(env, find[corev1.ConfigMap](n.t, n.server.manifests, "ConfigMap", "beeline-api-server").Data)
	} else {
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				env[e.Name] = e.Value
			}
		}
	}
	account := filepath.Join(n.bundle, "account")
	n.write(filepath.Join(n.bundle, "config", "beeline.yaml"), n.settings)
	n.write(filepath.Join(account, "token"), n.token)
	n.write(filepath.Join(account, "ca.crt"), string(n.server.ClientConfig().CAData))
	volumes := map[string]string{serviceAccount: account, "config": filepath.Join(n.bundle, "config")}
	for _, v := range n.pod.Volumes {
		if v.HostPath != nil {
			volumes[v.Name], err = n.nodePath(v.HostPath.Path)
			must(n.t, err)
		}
	}
	if n.bpf != "" {
		volumes["bpf"] = n.bpf
	}
	spec := runtimePod{
		rootfs: "rootfs", entrypoint: config.Config.Entrypoint, imageEnv: config.Config.Env, env: env, volumes: volumes,
		cgroup: "/system.slice/" + n.id,
	}.runtimeSpec(n.pod)
	text, err := json.Marshal(spec)
	must(n.t, err)
	n.write(filepath.Join(n.bundle, "config.json"), string(text))
}

func (n *labNode) write(path, text string) {
	n.t.Helper()
	must(n.t, os.WriteFile(path, []byte(text), 0o600))
}

// start starts the container, and waits until its agent serves.
func (n *labNode) start() error {
	n.configure()
	if err := n.agent.StartOnly(); err != nil {
		return err
	}
	return n.agent.WaitReady()
}

// stop ends the container as the kubelet does. Nothing of runc's remains.
func (n *labNode) stop() {
	n.t.Helper()
	must(n.t, n.agent.Stop())
}

// crash kills the program in the container.
func (n *labNode) crash() {
	n.t.Helper()
	_, err := n.runc("kill", n.id, "KILL")
	must(n.t, err)
	if err := n.agent.Wait(); err == nil {
		n.t.Error("a killed container ended without an error")
	}
}

// runcCommand is a command of runc, for which the machine's cgroups are the node's part of the lab. It ignores
// arguments that follow.
func (n *labNode) runcCommand(arguments ...string) []string {
	script := fmt.Sprintf("mount --bind %s /sys/fs/cgroup && exec runc --root %s/runc %s", n.host.CgroupRoot, n.bundle, strings.Join(arguments, " "))
	return []string{"unshare", "--mount", "--propagation", "slave", "sh", "-c", script}
}

// runc runs it on the node: what it executes in the container has the network namespace of its caller, because the
// container has none of its own.
func (n *labNode) runc(arguments ...string) (string, error) {
	out, err := n.host.Command(context.Background(), n.runcCommand(arguments...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("runc %v: %w: %s", arguments, err, out)
	}
	return string(out), err
}

func (n *labNode) remove() {
	if n.agent.Running() {
		must(n.t, n.agent.Stop())
	}
	if n.t.Failed() {
		n.t.Logf("the container on %s printed:\n%s", n.host.Name, n.log)
	}
}

// unpack writes an image's files into a folder.
func unpack(image v1.Image, folder string) error {
	files := mutate.Extract(image)
	defer files.Close()
	for t := tar.NewReader(files); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(folder, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, os.FileMode(h.Mode))
		} else {
			err = writeFrom(t, path, os.FileMode(h.Mode))
		}
		if err != nil {
			return err
		}
	}
}

func writeFrom(from io.Reader, path string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
