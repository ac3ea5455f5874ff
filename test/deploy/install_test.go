// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/offline"
)

// installsLibrary: the init container that the API server has added to a pod installs the library in the pod's
// volume, and programs with the environment of the pod's container then talk by rings at the proxy's port.
func (n *labNode) installsLibrary(t *testing.T) {
	pod, err := n.server.admit(t, stacked, plainPod())
	must(t, err)
	install := pod.Spec.InitContainers[0]
	rootfs := filepath.Join(n.host.Dir, "install", "rootfs")
	must(t, unpack(n.image, rootfs))
	volume := n.emptyDir(t)
	_, err = n.run(install, volume, nil)
	must(t, err)
	path := filepath.Join(volume, offline.LibraryName)
	info, err := os.Stat(path)
	must(t, err)
	if !bytes.Equal(read(t, path), read(t, hostStack(t, offline.LibraryName))) || info.Mode().Perm() != 0o755 {
		t.Errorf("%s has mode %v, or is not the library of the image", path, info.Mode())
	}
	n.wantRings(t, pod.Spec.Containers[0].Env, volume)
	for what, c := range map[string]struct {
		volumeMode os.FileMode
		change     func(*specs.Spec)
		want       string
	}{
		"without the library": {0o777, func(s *specs.Spec) {
			s.Process.Args = append(s.Process.Args, "--from=/usr/lib/"+offline.LibraryName)
		}, "`make hoststack` builds it"},
		"without a folder":           {0o777, func(s *specs.Spec) { s.Process.Args[len(s.Process.Args)-1] = "/missing" }, "mount a volume there"},
		"with a read-only volume":    {0o777, func(s *specs.Spec) { volumeOf(s).Options = []string{"bind", "ro"} }, "without readOnly"},
		"with a volume that is full": {0o777, func(s *specs.Spec) { *volumeOf(s) = tinyVolume }, "raise the limit of the volume"},
		"with a volume of root":      {0o755, func(*specs.Spec) {}, "let user 65534 write"},
	} {
		volume := n.emptyDir(t)
		must(t, os.Chmod(volume, c.volumeMode))
		_, err := n.run(install, volume, c.change)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := os.ReadDir(volume); err != nil || len(left) > 0 {
			t.Errorf("%s the volume has %v, %v", what, left, err)
		}
	}
}

// tinyVolume is a volume with less space than the library needs.
var tinyVolume = specs.Mount{Destination: "/opt/beeline", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=64k", "uid=65534"}}

func volumeOf(s *specs.Spec) *specs.Mount {
	for i := range s.Mounts {
		if s.Mounts[i].Destination == tinyVolume.Destination {
			return &s.Mounts[i]
		}
	}
	return nil
}

// emptyDir is a volume as the kubelet makes it: all users may write.
func (n *labNode) emptyDir(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp(n.host.Dir, "volume-")
	must(t, err)
	must(t, os.Chmod(folder, 0o777))
	return folder
}

// run runs a container with the image to its end, with a volume at its mounts.
func (n *labNode) run(c corev1.Container, volume string, change func(*specs.Spec)) (output string, err error) {
	n.t.Helper()
	config, err := n.image.ConfigFile()
	must(n.t, err)
	volumes := map[string]string{serviceAccount: filepath.Join(n.bundle, "account")}
	for _, m := range c.VolumeMounts {
		volumes[m.Name] = volume
	}
	spec := runtimePod{
		rootfs: "rootfs", entrypoint: config.Config.Entrypoint, imageEnv: config.Config.Env, volumes: volumes, cgroup: "/system.slice/install",
	}.runtimeSpec(&corev1.PodSpec{Containers: []corev1.Container{c}})
	if change != nil {
		change(spec)
	}
	text, err := json.Marshal(spec)
	must(n.t, err)
	bundle := filepath.Join(n.host.Dir, "install")
	n.write(filepath.Join(bundle, "config.json"), string(text))
	return n.runc("run", "--bundle", bundle, "install")
}

// wantRings has two programs with a container's environment, and the volume where pods have it, connect as an
// application and its proxy do, in the network namespace of a pod of the lab.
func (n *labNode) wantRings(t *testing.T, env []corev1.EnvVar, volume string) {
	t.Helper()
	const connections = 4
	mount := fmt.Sprintf(`mount -t tmpfs tmpfs /opt && mkdir /opt/beeline && mount --bind %s /opt/beeline && exec env "$@"`, volume)
	command := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"}
	for _, e := range env {
		command = append(command, e.Name+"="+e.Value)
	}
	command = append(command, hostStack(t, "beeline-pingpong"), "--address", "127.0.0.1:15001", "--connections", fmt.Sprint(connections), "--seconds", "0.2")
	out, err := n.server.Lab.Host("a1").Command(t.Context(), command...).Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", command, err, out)
	}
	var result struct{ Attached, Rounds int }
	must(t, json.Unmarshal(out, &result))
	if result.Attached != connections || result.Rounds == 0 {
		t.Errorf("%d of %d connections are on rings: %s", result.Attached, connections, out)
	}
}
