// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// S4: Go's own resolver, and its connections by name.
func TestGoResolver(t *testing.T) {
	w := startDNSWorld(t, "a2 b1")
	self, err := os.Executable()
	w.must(err)
	for _, way := range resolverWays {
		t.Run(way.name, func(t *testing.T) {
			for _, from := range w.hosts("a1 node-a") {
				for _, f := range []family{ipv4, ipv6} {
					got := w.goClient(t, from, resolvConf(f, way.options, way.services...), self)
					what := fmt.Sprintf("Go on %s, by %s,", from.Name, f.name)
					w.wantWho(t, what, strings.Join(got.Who, " "))
					if len(got.Many) != 2*manyAddresses {
						t.Errorf("%s got %d addresses, want %d", what, len(got.Many), 2*manyAddresses)
					}
					for network, answer := range got.Web {
						if want := ipv4.clusterIP(webService); network == "tcp4" && answer.Remote != want {
							t.Errorf("%s is connected to %s, want %s", what, answer.Remote, want)
						}
						if want := ipv6.clusterIP(webService); network == "tcp6" && answer.Remote != want {
							t.Errorf("%s is connected to %s, want %s", what, answer.Remote, want)
						}
						if answer.Pod != "b2" {
							t.Errorf("%s got an answer from %s, want b2", what, answer.Pod)
						}
					}
				}
			}
		})
	}
}

// partGoClient is the name of the Go client's process.
const partGoClient = "beeline-test-go-client"

// goFindings is its output.
type goFindings struct {
	Who, Many []string
	Web       map[string]goConnection // by network
}

type goConnection struct {
	Remote netip.AddrPort // as the program sees it
	Pod    string
}

func (w *dnsWorld) goClient(t *testing.T, from *lab.Host, files etc, self string) (found goFindings) {
	t.Helper()
	out, _, err := executeAs(t, from, files, self, partGoClient, "who", "many", "web")
	if err == nil {
		err = json.Unmarshal([]byte(out), &found)
	}
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// goClient is the process.
func goClient(names []string) {
	found, err := find(names[0], names[1], names[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func find(who, many, web string) (found goFindings, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true}
	if found.Who, err = resolver.LookupHost(ctx, who); err != nil {
		return found, err
	}
	if found.Many, err = resolver.LookupHost(ctx, many); err != nil {
		return found, err
	}
	found.Web = map[string]goConnection{}
	for _, network := range []string{"tcp4", "tcp6"} {
		var remote netip.AddrPort
		client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Resolver: resolver}).DialContext(ctx, network, address)
			if err == nil {
				remote = conn.RemoteAddr().(*net.TCPAddr).AddrPort()
			}
			return conn, err
		}}}
		answer, err := lab.Get(ctx, &client, "http://"+web+"/go")
		if err != nil {
			return found, err
		}
		found.Web[network] = goConnection{remote, answer.Pod}
	}
	return found, nil
}
