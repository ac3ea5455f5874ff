// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// R34: listeners follow the addresses of each Service, a port that passes from one Service to another is served
// at once, and a Service that is not in the tables is not healthy. (Responses and conflicts are compared with
// kube-proxy's in test/cluster.)
func TestNodePorts(t *testing.T) {
	a, b := service.Ref{Kind: service.KindService, Namespace: "default", Name: "a"}, service.Ref{Kind: service.KindService, Namespace: "default", Name: "b"}
	one, two, three := freeAddress(t, "127.0.0.1"), freeAddress(t, "127.0.0.2"), freeAddress(t, "127.0.0.3")
	four := freeAddress(t, "127.0.0.4")
	healthy := true
	n := NewNodePorts(func() bool { return healthy }, 2, 10, slog.New(slog.DiscardHandler))
	defer n.Close()
	at := func(addr netip.AddrPort, ready int) []service.HealthPort {
		return []service.HealthPort{{Addr: addr, Ready: ready}}
	}
	for _, step := range []struct {
		name     string
		do       func()
		one, two string // name, endpoints and status; empty: nothing listens
	}{
		{"two Services", func() { n.Set(a, at(one, 1), true); n.Set(b, at(two, 2), true) }, "a 1 200", "b 2 200"},
		{"one has no endpoint", func() { n.Set(a, at(one, 0), true) }, "a 0 503", "b 2 200"},
		{"the agent is not healthy", func() { n.Set(a, at(one, 1), true); healthy = false }, "a 1 503", "b 2 503"},
		{"one is left out", func() { healthy = true; n.Refresh(func(r service.Ref) bool { return r == b }) }, "a 1 503", "b 2 200"},
		{"and not any more", func() { n.Refresh(func(service.Ref) bool { return true }) }, "a 1 200", "b 2 200"},
		{"its port becomes another's", func() { n.Set(a, nil, false); n.Set(b, at(one, 3), true) }, "b 3 200", ""},
		{"no room for another", func() {
			n.Set(a, append(at(two, 1), at(three, 1)...), true)
			if len(n.Problems()) != 1 { // b has one, a one of its two addresses
				t.Errorf("one more listener than there may be: %v", n.Problems())
			}
			await(t, "its first address is served", func() bool { return answerOf(two) == "a 1 200" && answerOf(three) == "" })
			n.Set(b, at(four, 1), true)
			await(t, "a Service that changes its address keeps its listener", func() bool { return answerOf(four) == "b 1 200" && answerOf(three) == "" })
			n.Set(b, nil, false)
			await(t, "the address that has waited is served", func() bool { return answerOf(two) == "a 1 200" && answerOf(three) == "a 1 200" })
			n.Set(a, nil, false)
			n.Set(b, at(one, 3), true)
		}, "b 3 200", ""},
		{"both addresses", func() { n.Set(b, append(at(one, 3), at(two, 4)...), true) }, "b 3 200", "b 4 200"},
		{"none", func() { n.Set(b, nil, false) }, "", ""},
	} {
		step.do()
		for addr, want := range map[netip.AddrPort]string{one: step.one, two: step.two} {
			await(t, fmt.Sprintf("%s: %s is %q", step.name, addr, want), func() bool { return answerOf(addr) == want })
		}
		if p := n.Problems(); len(p) > 0 {
			t.Errorf("%s: %v", step.name, p)
		}
	}
}

func answerOf(addr netip.AddrPort) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + addr.String())
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var body struct{ Service struct{ Name string } }
	json.NewDecoder(response.Body).Decode(&body)
	return fmt.Sprintf("%s %s %d", body.Service.Name, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), response.StatusCode)
}

func freeAddress(t *testing.T, host string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// await waits less than the time after which a taken address is tried again.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Errorf("waited 1.5 s in vain for this: %s", what)
}
