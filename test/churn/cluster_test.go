// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/test/node"
)

// grace is how long a server stays after its endpoint was removed: as long as the agent may take on a machine
// that is busy, and was stalled before. The shaky Services have no clients, and are to change quickly.
const grace, shakyGrace = 3 * time.Second, 200 * time.Millisecond

// The Services: steady ones of ten endpoints, one of which is always ready, and a few shaky ones that sometimes
// have none.
const (
	steadyServices = 500
	shakyServices  = 10
	firstPort      = 20000
)

// condition of an endpoint in its slices.
type condition int

const (
	ready condition = iota
	notReady
	terminating // and serving
	gone        // not in the slices
)

// endpoint is an endpoint of a Service, in both families.
type endpoint struct {
	pod *pod
	at  place

	// Only the writer reads these.
	condition condition
	stopping  bool // its server still runs after the endpoint was removed

	// left is when it ceased to be ready, removed when it was removed or became unready, in nanoseconds
	// since 1970; 0: not yet. Clients read them.
	left, removed atomic.Int64
}

func (e *endpoint) addresses() []netip.Addr { return e.pod.addresses[2*e.at.index : 2*e.at.index+2] }

// service is a Service with TCP and UDP on port 80 in both families.
type service struct {
	name      string
	object    *corev1.Service
	port      uint16 // of its endpoints, and of no others
	endpoints []*endpoint
	least     int // ready endpoints that it keeps
	ips       [2]netip.AddrPort

	last atomic.Pointer[string] // its last change, for messages
}

// cluster is all Services, and the folder with their manifests.
type cluster struct {
	folder   *node.Folder
	services []*service
	random   *rand.Rand
	stops    sync.WaitGroup // servers that are to stop

	mu       sync.Mutex // protects stopping of all endpoints, and failures
	failures []error
}

// newCluster makes Services with endpoints in the pods, and starts their servers.
func newCluster(folder *node.Folder, pods []*pod) (*cluster, error) {
	c := &cluster{folder: folder, random: rand.New(rand.NewPCG(1, 2))}
	for i := range steadyServices + shakyServices {
		s := &service{name: fmt.Sprintf("service-%d", i), port: uint16(firstPort + i), least: 1}
		places := len(pods) * pairs
		if i >= steadyServices {
			s.least, places = 0, 2
		}
		for n := range places {
			s.endpoints = append(s.endpoints, &endpoint{pod: pods[n%len(pods)], at: place{n / len(pods), s.port}})
		}
		ip4 := netip.AddrFrom4([4]byte{10, 96, byte(1 + i/250), byte(1 + i%250)})
		ip6 := netip.MustParseAddr(fmt.Sprintf("fd00:96::%x", 0x100+i))
		s.ips = [2]netip.AddrPort{netip.AddrPortFrom(ip4, 80), netip.AddrPortFrom(ip6, 80)}
		s.object = node.Service(s.name, 0)
		s.object.Spec.ClusterIP, s.object.Spec.ClusterIPs = ip4.String(), []string{ip4.String(), ip6.String()}
		node.SetPorts(s.object, nil,
			node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: int32(s.port)},
			node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, Target: int32(s.port)})
		c.services = append(c.services, s)
	}
	return c, c.startServers(pods)
}

func (c *cluster) startServers(pods []*pod) error {
	errs := make(chan error, len(pods))
	for _, p := range pods {
		go func() {
			var err error
			for _, s := range c.services {
				for _, e := range s.endpoints {
					if e.pod == p && err == nil {
						err = p.start(e.at)
					}
				}
			}
			errs <- err
		}()
	}
	var err error
	for range pods {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

// steady returns the Services that always have a ready endpoint.
func (c *cluster) steady() []*service { return c.services[:steadyServices] }

// write writes the file of a Service.
func (c *cluster) write(s *service) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	if err := encoder.Encode(s.object); err != nil {
		return err
	}
	slices := node.Slices(s.name)
	node.SetPorts(s.object, slices,
		node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: int32(s.port)},
		node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, Target: int32(s.port)})
	for family, slice := range slices {
		for _, e := range s.endpoints {
			if e.condition != gone {
				slice.Endpoints = append(slice.Endpoints, e.object(family))
			}
		}
		if err := encoder.Encode(slice); err != nil {
			return err
		}
	}
	return node.WriteFile(c.folder.Path, s.name+".json", text.Bytes())
}

// object is the endpoint in the slice of a family, 0 for IPv4 and 1 for IPv6.
func (e *endpoint) object(family int) discoveryv1.Endpoint {
	isReady, serving, ending := e.condition == ready, e.condition != notReady, e.condition == terminating
	return discoveryv1.Endpoint{
		Addresses:  []string{e.addresses()[family].String()},
		NodeName:   &e.pod.Node.Name,
		Conditions: discoveryv1.EndpointConditions{Ready: &isReady, Serving: &serving, Terminating: &ending},
	}
}
