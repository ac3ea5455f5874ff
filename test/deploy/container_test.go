// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
)

// The paths that the kubelet has runtimes hide or protect in a container with procMount Default
// (pkg/securitycontext/util.go of Kubernetes 1.36).
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// runtimeMounts are the mounts that containerd gives every container that is not privileged.
var runtimeMounts = []specs.Mount{
	{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
	{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
	{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
	{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
	{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
}

// runtimePod is what kubelet and containerd know of a pod beside its template.
type runtimePod struct {
	rootfs     string
	entrypoint []string
	imageEnv   []string
	// env are the values of environment variables that the template refers to.
	env map[string]string
	// volumes are the folders or files of the node for the template's volumes and the service account.
	volumes map[string]string
	// cgroup is the path of the container's cgroup below the node's.
	cgroup string
}

// runtimeSpec is the configuration that runc gets for the only container of a pod. It knows the fields that
// deploy/kubernetes uses.
func (p runtimePod) runtimeSpec(template *corev1.PodSpec) *specs.Spec {
	c := &template.Containers[0]
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: p.rootfs, Readonly: *c.SecurityContext.ReadOnlyRootFilesystem},
		Process: &specs.Process{
			Args: p.arguments(c), Cwd: "/",
			Env:             append(slices.Clone(p.imageEnv), pairs(p.env)...),
			User:            specs.User{UID: uint32(*c.SecurityContext.RunAsUser), GID: uint32(*c.SecurityContext.RunAsGroup)},
			Capabilities:    capabilities(c.SecurityContext.Capabilities.Add),
			NoNewPrivileges: !*c.SecurityContext.AllowPrivilegeEscalation,
		},
		Mounts: slices.Clone(runtimeMounts),
		Linux: &specs.Linux{
			CgroupsPath:   p.cgroup,
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
			Namespaces:    []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.CgroupNamespace}},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
	for _, m := range append(slices.Clone(c.VolumeMounts), corev1.VolumeMount{
		Name: serviceAccount, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true,
	}) {
		s.Mounts = append(s.Mounts, p.mount(m))
	}
	if !template.HostPID {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	if !template.HostNetwork {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	if c.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault {
		s.Linux.Seccomp = seccomp.DefaultProfile(s)
	}
	return s
}

// serviceAccount is the volume that the API server adds to every pod.
const serviceAccount = "service account"

// arguments are the entry point and the arguments, with $(NAME) replaced.
func (p runtimePod) arguments(c *corev1.Container) []string {
	all := slices.Clone(p.entrypoint)
	for _, a := range c.Args {
		for name, value := range p.env {
			a = strings.ReplaceAll(a, "$("+name+")", value)
		}
		all = append(all, a)
	}
	return all
}

func (p runtimePod) mount(m corev1.VolumeMount) specs.Mount {
	options := []string{"rbind", "rprivate", "rw"}
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer {
		options[1] = "rslave"
	}
	if m.ReadOnly {
		options[2] = "ro"
	}
	return specs.Mount{Destination: m.MountPath, Type: "bind", Source: p.volumes[m.Name], Options: options}
}

func capabilities(names []corev1.Capability) *specs.LinuxCapabilities {
	var all []string
	for _, name := range names {
		all = append(all, "CAP_"+string(name))
	}
	return &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
}

func pairs(env map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, fmt.Sprintf("%s=%s", name, env[name]))
	}
	return all
}

// nodePath is the place in a lab of a path of the node. The node's cgroups are where runc sees the machine's.
func (n *labNode) nodePath(path string) (string, error) {
	for at, place := range map[string]string{"/sys/fs/bpf": n.host.BPFFS, "/sys/fs/cgroup": "/sys/fs/cgroup", "/run/beeline": n.host.RunDir} {
		if below, ok := strings.CutPrefix(path, at); ok {
			return filepath.Join(place, below), nil
		}
	}
	return "", fmt.Errorf("the lab has no %s for a node", path)
}
