// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// wantWho checks the addresses that a program got for the name "who": at least one of each family that a name
// server's pod has.
func (w *dnsWorld) wantWho(t *testing.T, program, out string) {
	t.Helper()
	var v4, v6 int
	for address := range strings.FieldsSeq(out) {
		if w.serverOf(address) == "" {
			t.Errorf("%s got %s, which is no name server's pod", program, address)
		}
		if strings.Contains(address, ":") {
			v6++
		} else {
			v4++
		}
	}
	if v4 == 0 || v6 == 0 {
		t.Errorf("%s got %d IPv4 and %d IPv6 addresses, want both:\n%s", program, v4, v6, out)
	}
}

// The modes of the C library's resolver. It gives up at the first failure, so only first replies count; after a
// silent name server it tries the next.
var resolverWays = []struct {
	name, options string
	services      []uint8
}{
	{"plain", "timeout:20 attempts:1", []uint8{nameserver}},
	{"one question after the other", "timeout:20 attempts:1 single-request", []uint8{nameserver}},
	{"a socket for each question", "timeout:20 attempts:1 single-request-reopen", []uint8{nameserver}},
	{"EDNS", "timeout:20 attempts:1 edns0", []uint8{nameserver}},
	{"TCP", "timeout:20 attempts:1 use-vc", []uint8{nameserver}},
	{"in turn", "timeout:20 attempts:1 rotate", []uint8{nameserver, sameServers}},
	{"the first refuses", "timeout:20 attempts:1", []uint8{nobody, nameserver}},
	{"the first is silent", "timeout:1 attempts:1", []uint8{silent, nameserver}},
}

// S4: glibc queries by connected sockets, several queries at a time.
func TestGlibcResolver(t *testing.T) {
	wantProgram(t, "getent", "libc-bin")
	w := startDNSWorld(t, "a2 b1")
	for _, way := range resolverWays {
		t.Run(way.name, func(t *testing.T) {
			for _, from := range w.hosts("a1 node-a") {
				for _, f := range []family{ipv4, ipv6} {
					out, _, err := execute(t, from, resolvConf(f, way.options, way.services...), "getent", "ahosts", "who")
					if err != nil {
						t.Error(err)
						continue
					}
					w.wantWho(t, fmt.Sprintf("getent on %s, by %s,", from.Name, f.name), firstFields(out))
				}
			}
		})
	}
}

// firstFields returns the first word of each line.
func firstFields(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			all = append(all, fields[0])
		}
	}
	return strings.Join(all, " ")
}

// A reply that does not fit into a datagram arrives by TCP, from the same Service.
func TestGlibcResolverChangesToTCP(t *testing.T) {
	wantProgram(t, "getent", "libc-bin")
	w := startDNSWorld(t, "a2 b1")
	for _, from := range w.hosts("a1 node-a") {
		for _, f := range []family{ipv4, ipv6} {
			out, _, err := execute(t, from, resolvConf(f, "timeout:20 attempts:1", nameserver), "getent", "ahosts", "many")
			if err != nil {
				t.Error(err)
				continue
			}
			if got := strings.Count(out, "STREAM"); got != 2*manyAddresses {
				t.Errorf("getent on %s, by %s, got %d addresses, want %d:\n%s", from.Name, f.name, got, 2*manyAddresses, out)
			}
		}
	}
}

// S4: curl by name, its resolver's queries and its connection through Services.
func TestCurlByName(t *testing.T) {
	wantProgram(t, "curl", "curl")
	w := startDNSWorld(t, "a2 b1")
	for _, from := range w.hosts("a1 node-a") {
		for _, f := range []family{ipv4, ipv6} {
			for _, version := range []string{"-4", "-6"} {
				out, _, err := execute(t, from, resolvConf(f, "timeout:20 attempts:1", nameserver),
					"curl", "-sS", version, "--noproxy", "*", "--max-time", "20", "http://web/hello")
				var answer lab.Answer
				if err == nil {
					err = json.Unmarshal([]byte(out), &answer)
				}
				if err != nil || answer.Pod != "b2" || answer.Payload != "/hello" {
					t.Errorf("curl %s on %s, by %s: %q (%v), want an answer from b2", version, from.Name, f.name, out, err)
				}
			}
		}
	}
}

// K3: musl queries all name servers at once from one unconnected socket, and drops replies from addresses that
// it did not query. Two Services with the same pod are two name servers to it.
func TestMuslResolver(t *testing.T) {
	resolve := buildMusl(t)
	w := startDNSWorld(t, "b1")
	for _, way := range []struct {
		name     string
		services []uint8
	}{
		{"one", []uint8{nameserver}},
		{"two of the same servers", []uint8{nameserver, sameServers}},
		{"one is silent", []uint8{silent, sameServers}},
		{"one refuses", []uint8{nobody, nameserver}},
	} {
		t.Run(way.name, func(t *testing.T) {
			for _, from := range w.hosts("a1 node-a") {
				for _, conf := range []etc{
					resolvConf(ipv4, "timeout:20 attempts:1", way.services...),
					resolvConf(ipv6, "timeout:20 attempts:1", way.services...),
					bothFamilies(way.services),
				} {
					for range 5 {
						out, _, err := execute(t, from, conf, resolve, "who")
						if err != nil {
							t.Fatalf("%v; its resolv.conf was\n%s", err, conf["resolv.conf"])
						}
						w.wantWho(t, "musl on "+from.Name, out)
					}
				}
			}
		})
	}
}

// bothFamilies has IPv4 and IPv6 name servers: musl then queries both from one IPv6 socket. It uses at most
// three.
func bothFamilies(services []uint8) etc {
	conf := resolvConf(ipv4, "timeout:20 attempts:1", services...)
	conf["resolv.conf"] = fmt.Sprintf("nameserver %s\n", ipv6.clusterIP(nameserver).Addr()) + conf["resolv.conf"]
	return conf
}

// buildMusl compiles a program against musl.
func buildMusl(t *testing.T) string {
	t.Helper()
	wantProgram(t, "musl-gcc", "musl-tools")
	path := filepath.Join(t.TempDir(), "resolve")
	out, err := exec.CommandContext(t.Context(), "musl-gcc", "-static", "-O2", "-Wall", "-Werror", "-o", path, "testdata/resolve.c").CombinedOutput()
	if err != nil {
		t.Fatalf("musl-gcc: %v\n%s", err, out)
	}
	return path
}
