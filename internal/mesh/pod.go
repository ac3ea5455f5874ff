// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
	"beeline.io/beeline/internal/service"
)

// A Pod is the state of a pod that has a proxy.
type Pod struct {
	// Name and UID are those of a pod of Kubernetes; empty for one of Config.Cgroups.
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
	// ProxyUID is the user of its proxy.
	ProxyUID uint32 `json:"proxyUID"`
	// Native: its proxy is an init container that does not end.
	Native    bool   `json:"nativeSidecar,omitempty"`
	Directory string `json:"directory,omitempty"`
	// Cgroup is the id of the cgroup; 0: there is none.
	Cgroup uint64 `json:"cgroup,omitempty"`
	// Namespace is the cookie of its network namespace; 0: the cgroup has had no process yet.
	Namespace uint64 `json:"namespace,omitempty"`
	// Listeners is the number of the proxy's sockets for inbound connections.
	Listeners int `json:"listeners"`
	// Failed is why connections do not go to the proxy; empty: they do.
	Failed string `json:"failed,omitempty"`

	policy   *datapath.MeshPolicy
	attached bool
	inbound  uint64 // the namespace with the program for inbound connections
}

// A Left is a pod that is selected and left alone.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// StatusPath is the question at the agent's socket that is answered with a Status.
const StatusPath = "/v1/mesh"

// Status is the state of the sidecar shortcut.
type Status struct {
	Pods         []Pod  `json:"pods"`
	Left         []Left `json:"left,omitempty"`
	OutboundPort uint16 `json:"outboundPort"`
	InboundPort  uint16 `json:"inboundPort"`
}

// Served reports whether all connections of the pod go to its proxy.
func (p *Pod) Served() bool { return p.Failed == "" && p.Namespace != 0 }

// Label is what people call the pod.
func (p *Pod) Label() string { return cmp.Or(p.Name, p.Directory) }

// reset returns the pod with a cgroup to which nothing is attached.
func (p Pod) reset(cgroup uint64, failed string) Pod {
	p.Cgroup, p.Namespace, p.attached, p.inbound, p.Failed = cgroup, 0, false, 0, failed
	return p
}

// Pods returns the state of all pods.
func (s *Shortcut) Pods() []Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pods)
}

// Status returns the state of all pods, and which are left alone.
func (s *Shortcut) Status() *Status {
	status := &Status{Pods: s.Pods(), OutboundPort: s.config.OutboundPort, InboundPort: s.config.InboundPort}
	for _, l := range s.leftAlone() {
		status.Left = append(status.Left, Left{l.Pod.Namespace + "/" + l.Pod.Name, l.Why})
	}
	return status
}

func (s *Shortcut) leftAlone() []service.SidecarLeft {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

// Conditions returns what is wrong with pods. A cgroup that does not exist is not: the pod may not run.
func (s *Shortcut) Conditions() (all condition.List) {
	pods := s.Pods()
	for _, p := range pods {
		switch {
		case p.Cgroup != 0 && p.Failed != "":
			all = append(all, condition.MeshPodFailed.New("%s", p.Failed).At(p.Label()))
		case p.Namespace != 0 && p.Listeners == 0:
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d", p.Label(), s.config.InboundPort).At(p.Label()))
		}
	}
	all = append(all, s.readerConditions(pods)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(all, s.problem...)
}

// namespaceOf opens the network namespace of the processes of a cgroup; nil if there is none. Processes in the agent's
// do not count beside others: helpers of the container runtime.
func namespaceOf(directory string) (*netns.Namespace, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	pids, err := Processes(directory)
	ofNode := false
	for _, pid := range pids {
		n, err := netns.Open("/proc/" + pid + "/ns/net")
		switch {
		case errors.Is(err, netns.ErrVanished):
			continue
		case err != nil || n.Inode != own.Inode:
			return n, err
		}
		ofNode = true
		n.Close()
	}
	if ofNode {
		return nil, fmt.Errorf("the pod of %s is in the node's network namespace: all connections to the node would go to its proxy", directory)
	}
	return nil, err
}

// cookieOf returns the cookie of the network namespace of a cgroup's processes; 0 if there is none yet.
func cookieOf(directory string) (uint64, error) {
	namespace, err := namespaceOf(directory)
	if namespace == nil || err != nil {
		return 0, err
	}
	defer namespace.Close()
	return namespace.Cookie()
}

// Processes lists the processes of a cgroup and those below it.
func Processes(directory string) (pids []string, err error) {
	err = filepath.WalkDir(directory, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		pids = append(pids, strings.Fields(string(text))...)
		return ignoreGone(err)
	})
	return pids, err
}

// ignoreGone drops errors of cgroups that are removed meanwhile, or threaded (EOPNOTSUPP).
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
