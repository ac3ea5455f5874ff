// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

// A flow is listed the same whichever of its conntrack entries is left, except for the counts of the other
// one.
func TestListWithLostEntries(t *testing.T) {
	asked := conntracktest.Tuple(udp, "198.51.100.7:40000", "192.0.2.1:30080")
	answer := conntracktest.Tuple(udp, "10.10.2.11:8080", "192.0.2.1:1024")
	names := func(id uint32) (owner, port string) {
		if id != 5 {
			return "", ""
		}
		return "default/web", "dns"
	}
	other := func(id uint32) bool { return id != 5 }
	web := func(id uint32) bool { return id == 5 }
	for _, c := range []struct {
		name          string
		client, reply bool
	}{{"both", true, true}, {"the client's", true, false}, {"the reply's", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			tracks := conntracktest.Table{}
			state := uint8(bpf.ConntrackEstablished)
			if c.client {
				tracks[asked] = Entry{Xlate: answer.Reverse(), Lb: bpf.EdgeTCCtLb{Service: 5}, State: state, Packets: 3, Bytes: 300}
			}
			if c.reply {
				tracks[answer] = Entry{Xlate: asked.Reverse(), Lb: bpf.EdgeTCCtLb{Service: 5}, State: state, Flags: uint8(bpf.ConntrackReply), Packets: 2, Bytes: 200}
			}
			all, err := List(&Tables{Assured: tracks, Unreplied: conntracktest.Table{}}, names)
			if err != nil || len(all) != 1 {
				t.Fatalf("%d flows, %v", len(all), err)
			}
			got := all[0]
			got.IdleSeconds = 0
			want := Flow{
				Protocol: service.UDP, Client: asked.From(), Address: asked.To(), Service: "default/web", Port: "dns",
				Backend: answer.From(), SeenAs: answer.To(), State: "established",
			}
			if c.client {
				want.FromClient = Traffic{3, 300}
			}
			if c.reply {
				want.ToClient = Traffic{2, 200}
			}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			flushed, err := Flush(&Tables{Assured: tracks, Unreplied: conntracktest.Table{}}, other, nil)
			if flushed != 0 || err != nil {
				t.Errorf("flushed %d flows of another Service, %v", flushed, err)
			}
			flushed, err = Flush(&Tables{Assured: tracks, Unreplied: conntracktest.Table{}}, web, nil)
			if flushed != 1 || err != nil || len(tracks) != 0 {
				t.Errorf("flushed %d flows, %v; left %v", flushed, err, tracks)
			}
		})
	}
}

// With DSR a flow has only the client's entry: the backend sees the client, and nothing here counts its
// replies.
func TestListWithDSR(t *testing.T) {
	asked := conntracktest.Tuple(udp, "198.51.100.7:40000", "192.0.2.1:30080")
	becomes := conntracktest.Tuple(udp, "198.51.100.7:40000", "10.10.2.11:8080")
	for kind, name := range map[bpf.DSR]string{bpf.DSRIPIP: "ipip", bpf.DSRGeneve: "geneve", bpf.DSROpt: "opt"} {
		tracks := conntracktest.Table{asked: Entry{Xlate: becomes, State: uint8(bpf.ConntrackEstablished), Dsr: uint8(kind), Packets: 3, Bytes: 300}}
		flows := &Tables{Assured: tracks, Unreplied: conntracktest.Table{}}
		all, err := List(flows, func(uint32) (owner, port string) { return "", "" })
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d flows, %v", name, len(all), err)
		}
		got := all[0]
		got.IdleSeconds = 0
		want := Flow{Protocol: service.UDP, Client: asked.From(), Address: asked.To(), Backend: becomes.To(), DSR: name,
			State: "established", FromClient: Traffic{3, 300}}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if flushed, err := Flush(flows, func(uint32) bool { return true }, nil); flushed != 1 || err != nil || len(tracks) != 0 {
			t.Errorf("%s: flushed %d flows, %v; left %v", name, flushed, err, tracks)
		}
	}
}
