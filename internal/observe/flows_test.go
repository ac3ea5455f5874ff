// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// records is a table of flows in memory.
type records map[datapath.Tuple]datapath.Track

func (r records) Max() uint32 { return 64 }
func (r records) Walk(f func(datapath.Tuple, *datapath.Track) bool) error {
	for k, t := range r {
		if !f(k, &t) {
			break
		}
	}
	return nil
}
func (r records) Get(k datapath.Tuple) (*datapath.Track, error) {
	if t, ok := r[k]; ok {
		return &t, nil
	}
	return nil, nil
}
func (r records) Delete(k datapath.Tuple) (bool, error) {
	return r.DeleteIf(k, func(*datapath.Track) bool { return true })
}
func (r records) DeleteIf(k datapath.Tuple, is func(*datapath.Track) bool) (bool, error) {
	t, existed := r[k]
	if !existed || !is(&t) {
		return false, nil
	}
	delete(r, k)
	return true, nil
}

func flowTuple(from, to string) datapath.Tuple {
	f, t := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return datapath.Tuple{
		Source: datapath.AddressFrom(f.Addr()), SourcePort: datapath.NetworkOrder(f.Port()),
		Destination: datapath.AddressFrom(t.Addr()), DestinationPort: datapath.NetworkOrder(t.Port()),
		Protocol: uint8(service.UDP),
	}
}

// A flow is the same whichever of its records is left, but for what only the other
// one counted.
func TestReadFlowsWithLostRecords(t *testing.T) {
	asked := flowTuple("198.51.100.7:40000", "192.0.2.1:30080")
	answer := flowTuple("10.10.2.11:8080", "192.0.2.1:1024")
	names := map[uint32]datapath.ServiceName{5: {}}
	name := names[5]
	copy(name.Namespace[:], "default")
	copy(name.Name[:], "web")
	copy(name.Port[:], "dns")
	names[5] = name
	for _, c := range []struct {
		name          string
		client, reply bool
	}{{"both", true, true}, {"the client's", true, false}, {"the reply's", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			tracks := records{}
			state := uint8(datapath.TrackEstablished)
			if c.client {
				tracks[asked] = datapath.Track{Becomes: answer.Reverse(), Service: 5, State: state, Packets: 3, Bytes: 300}
			}
			if c.reply {
				tracks[answer] = datapath.Track{Becomes: asked.Reverse(), Service: 5, State: state, Flags: uint8(datapath.TrackReply), Packets: 2, Bytes: 200}
			}
			all, err := ReadFlows(&datapath.Flows{Tracks: tracks, HalfOpen: records{}}, names)
			if err != nil || len(all) != 1 {
				t.Fatalf("%d flows, %v", len(all), err)
			}
			got := all[0]
			got.IdleSeconds = 0
			want := Flow{
				Protocol: service.UDP, Client: asked.From(), Address: asked.To(), Service: "default/web", Port: "dns",
				Backend: answer.From(), Via: answer.To(), State: "established",
			}
			if c.client {
				want.Sent = Traffic{3, 300}
			}
			if c.reply {
				want.Received = Traffic{2, 200}
			}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			flushed, err := FlushFlows(&datapath.Flows{Tracks: tracks, HalfOpen: records{}}, NamedService(names, "default/other"), nil)
			if flushed != 0 || err != nil {
				t.Errorf("flushed %d flows of another Service, %v", flushed, err)
			}
			flushed, err = FlushFlows(&datapath.Flows{Tracks: tracks, HalfOpen: records{}}, NamedService(names, "default/web"), nil)
			if flushed != 1 || err != nil || len(tracks) != 0 {
				t.Errorf("flushed %d flows, %v; left %v", flushed, err, tracks)
			}
		})
	}
}

// A flow with DSR has the client's record alone: the backend sees the client, and what it
// answers nobody here counts.
func TestReadFlowsWithDSR(t *testing.T) {
	asked := flowTuple("198.51.100.7:40000", "192.0.2.1:30080")
	becomes := flowTuple("198.51.100.7:40000", "10.10.2.11:8080")
	for kind, name := range map[datapath.DSR]string{datapath.DSRIPIP: "ipip", datapath.DSRGeneve: "geneve", datapath.DSROpt: "opt"} {
		tracks := records{asked: datapath.Track{Becomes: becomes, State: uint8(datapath.TrackEstablished), Dsr: uint8(kind), Packets: 3, Bytes: 300}}
		flows := &datapath.Flows{Tracks: tracks, HalfOpen: records{}}
		all, err := ReadFlows(flows, nil)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d flows, %v", name, len(all), err)
		}
		got := all[0]
		got.IdleSeconds = 0
		want := Flow{Protocol: service.UDP, Client: asked.From(), Address: asked.To(), Backend: becomes.To(), DSR: name,
			State: "established", Sent: Traffic{3, 300}}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if flushed, err := FlushFlows(flows, func(uint32) bool { return true }, nil); flushed != 1 || err != nil || len(tracks) != 0 {
			t.Errorf("%s: flushed %d flows, %v; left %v", name, flushed, err, tracks)
		}
	}
}
