// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"fmt"
	"net"
	"slices"
	gosync "sync"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/suggest"
)

// CheckNames rejects a Service that is not in the tables and a device that is not in this network namespace,
// because no event could match. It completes the name of a Service. It returns a *RequestError.
func CheckNames(f *api.Filter, services bpf.Hash[uint32, bpf.ServiceName]) error {
	if f.Device != "" {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		var names []string
		for _, d := range all {
			names = append(names, d.Name)
		}
		if !slices.Contains(names, f.Device) {
			return api.BadRequest("--device %s: this node has no such device%s", f.Device, suggest.DidYouMean(f.Device, names))
		}
	}
	if f.Service == "" {
		return nil
	}
	names, err := services.All()
	if err != nil {
		return err
	}
	f.Service, err = FindService(names, f.Service)
	return err
}

// EventReader replaces IDs in events by names. Its methods may be called from any goroutine.
type EventReader struct {
	services bpf.Hash[uint32, bpf.ServiceName]

	mu      gosync.Mutex
	names   map[uint32]bpf.ServiceName
	devices map[uint32]string
	read    time.Time
}

// NewEventReader returns a reader that reads the names of Services from a table.
func NewEventReader(services bpf.Hash[uint32, bpf.ServiceName]) *EventReader {
	return &EventReader{services: services}
}

// Intervals at which names are reread: regularly, and after an unknown ID, but then no more often than
// namesInterval, because a flood of events may have unknown IDs.
const (
	namesAge      = 10 * time.Second
	namesInterval = 100 * time.Millisecond
)

// Event converts an event of the datapath.
func (r *EventReader) Event(e *bpf.EdgeEvent) *api.Event {
	reason := bpf.ReasonName(e.Reason)
	event := &api.Event{
		Time: time.Now().Add(-bpf.Age(e)), Hook: "tc", Reason: reason, Why: api.Reasons[reason],
		Protocol: service.Protocol(e.Packet.Protocol), Client: e.Packet.From(), Address: e.Packet.To(), Length: e.Length,
	}
	if e.Xdp != 0 {
		event.Hook = "xdp"
	}
	if reason == "new" || reason == "recovered" {
		event.Backend = e.Xlate.To()
		if via := e.Xlate.From(); via != event.Client {
			event.SeenAs = via
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh(e.Service, e.Device)
	event.Device = r.devices[e.Device]
	if event.Device == "" {
		event.Device = fmt.Sprintf("(index %d)", e.Device)
	}
	if name, ok := r.names[e.Service]; ok {
		port := codec.PortOf(name)
		event.Service, event.Port = port.Owner.Namespace+"/"+port.Owner.Name, port.Name
	}
	return event
}

func (r *EventReader) refresh(id, device uint32) {
	_, named := r.names[id]
	_, found := r.devices[device]
	age := time.Since(r.read)
	if age < namesInterval || age < namesAge && found && (named || id == 0) {
		return
	}
	r.read = time.Now()
	// If a table cannot be read, events show no name, or the number of the device.
	if names, err := r.services.All(); err == nil {
		r.names = names
	}
	all, _ := net.Interfaces()
	r.devices = map[uint32]string{}
	for _, d := range all {
		r.devices[uint32(d.Index)] = d.Name
	}
}
