// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenUntil is a token of a service account that expires then.
func tokenUntil(expires time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"exp":%d,"sub":"x"}`, expires.Unix())) + ".signature"
}

// What the server refuses is named with its place and the remedy that fits: a file is read again, a kubeconfig is not.
// No secret is in it.
func TestCredentials(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(tokenUntil(now.Add(-time.Hour))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		config       rest.Config
		what, remedy string
	}{
		{"file, expired", rest.Config{BearerTokenFile: file, BearerToken: "secret"}, "the token in " + file + ", which expired 2026-03-01T11:00:00Z", "write a valid token to " + file},
		{"no such file", rest.Config{BearerTokenFile: "/missing"}, "the token in /missing", "write a valid token to /missing"},
		{"inline, expired", rest.Config{BearerToken: tokenUntil(now.Add(-time.Minute))}, "the token in /etc/k, which expired 2026-03-01T11:59:00Z", "in /etc/k and restart the agent"},
		{"inline, valid or revoked", rest.Config{BearerToken: tokenUntil(now.Add(time.Minute))}, "the token in /etc/k", "in /etc/k and restart the agent"},
		{"inline, not a JWT", rest.Config{BearerToken: "secret"}, "the token in /etc/k", "in /etc/k and restart the agent"},
		{"certificate", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: "/etc/c"}}, "the client certificate /etc/c", "renew /etc/c"},
		{"inline certificate", rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("secret")}}, "the client certificate in /etc/k", "in /etc/k and restart the agent"},
		{"plugin", rest.Config{ExecProvider: &clientcmdapi.ExecConfig{Command: "aws"}}, "the credentials of aws", "run aws on this node"},
		{"password", rest.Config{Username: "u", Password: "secret"}, "the user and password in /etc/k", "in /etc/k and restart the agent"},
		{"none", rest.Config{}, "requests without credentials", "a tokenFile or a client certificate"},
	} {
		got := credentialsOf(&c.config, "/etc/k")
		what := got.refused(now)
		if what != c.what || !strings.Contains(got.remedy, c.remedy) || strings.Contains(what+got.remedy, "secret") {
			t.Errorf("%s: %q, %q; want %q, %q", c.name, what, got.remedy, c.what, c.remedy)
		}
	}
}
