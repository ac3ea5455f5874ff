// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/node"
)

// told is everything that an agent says: where, and what.
type told map[string]string

// secrets: neither the log at its most detailed level, nor the agent's socket, nor its HTTP endpoints contain
// the service account's token, or the credentials of a kubeconfig that the API server refuses.
func (n *labNode) secrets(t *testing.T) {
	says := told{"log": n.log.String()}
	n.ask(says, n.agent)
	says.wantNone(t, "the token", n.token)

	refused, token, key := n.refusedAgent()
	must(t, refused.StartOnly())
	must(t, refused.WaitFor("refused by the API server", func(s *api.Status) bool {
		return slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool { return strings.Contains(c.Message, "nauthorized") })
	}))
	says = told{}
	n.ask(says, refused)
	must(t, refused.Stop())
	says["log"] = refused.Log.(*node.Log).String()
	says.wantNone(t, "the refused token", token)
	says.wantNone(t, "the client's key", strings.Split(string(key), "\n")[1])
	says.wantNone(t, "the client's key, as in the kubeconfig", base64.StdEncoding.EncodeToString(key))
}

// wantNone fails for each place that has a secret, or a part of it.
func (s told) wantNone(t *testing.T, what, secret string) {
	t.Helper()
	middle := secret[len(secret)/2 : len(secret)/2+20]
	for where, text := range s {
		if strings.Contains(text, middle) {
			t.Errorf("%s is in %s:\n%s", what, where, text)
		}
	}
}

// ask reads all that an agent serves. Profiles are not text, but contain the strings of the program.
func (n *labNode) ask(says told, a *node.Agent) {
	n.t.Helper()
	unix := api.NewClient(a.Socket())
	for _, path := range []string{api.StatusPath, api.TablesPath, api.CountedTablesPath, api.BackendsPath, api.MetricsPath} {
		says[a.Socket()+path] = n.get(&unix.Client, "agent", path)
	}
	tcp := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return a.Host.Dial(ctx, network, address)
	}}}
	for _, port := range []uint16{10249, 10256} {
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String()
		for _, path := range []string{"/", "/healthz", "/livez", "/metrics", "/configz", "/flagz", "/statusz", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
			says[at+path] = n.get(tcp, at, path)
		}
	}
	if says[a.Socket()+api.StatusPath] == "" || !strings.Contains(says[a.Socket()+api.StatusPath], n.host.Name[:5]) {
		n.t.Errorf("the agent on %s does not tell its status", a.Host.Name)
	}
}

// get returns the answer with its headers, whatever its code.
func (n *labNode) get(client *http.Client, host, path string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	must(n.t, err)
	response, err := client.Do(request)
	must(n.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(n.t, err)
	return fmt.Sprint(response.Header) + string(text)
}

// refusedAgent is an agent on another node, with a token and a client certificate that the API server refuses.
func (n *labNode) refusedAgent() (a *node.Agent, token string, key []byte) {
	n.t.Helper()
	token = n.token[:len(n.token)-40] + strings.Repeat("x", 40)
	must(n.t, n.server.WriteKubeconfig("refused", token))
	path := n.server.Kubeconfig("refused")
	config, err := clientcmd.LoadFromFile(path)
	must(n.t, err)
	certificate, private := selfSigned(n.t)
	config.AuthInfos["refused"].ClientCertificateData = certificate
	config.AuthInfos["refused"].ClientKeyData = private
	must(n.t, clientcmd.WriteToFile(*config, path))
	return &node.Agent{
		Host: n.server.Lab.Host("node-b"), Program: beeline, Kubeconfig: path, Log: &node.Log{}, Flags: []string{"--log-level=debug"},
	}, token, private
}
