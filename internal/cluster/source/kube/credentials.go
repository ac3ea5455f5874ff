// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// credentials describe what the agent shows the server, without any secret.
type credentials struct {
	what, remedy string
	// token returns a bearer token; nil without one.
	token func() string
}

// credentialsOf describes a configuration. client-go reads files again (a token's once a minute), and what a kubeconfig
// itself contains never.
func credentialsOf(c *rest.Config, kubeconfig string) credentials {
	restart := fmt.Sprintf("in %s and restart the agent", kubeconfig)
	switch {
	case c.BearerTokenFile != "":
		return credentials{"the token in " + c.BearerTokenFile, fmt.Sprintf("write a valid token to %s; the agent reads it again and tries it within three minutes", c.BearerTokenFile), func() string {
			text, _ := os.ReadFile(c.BearerTokenFile)
			return string(text)
		}}
	case c.BearerToken != "":
		return credentials{"the token in " + kubeconfig, "replace the token " + restart + "; a tokenFile would be read again", func() string { return c.BearerToken }}
	case c.CertFile != "":
		return credentials{"the client certificate " + c.CertFile, fmt.Sprintf("renew %s, and restart the agent if it has not read it again after ten minutes", c.CertFile), nil}
	case len(c.CertData) > 0:
		return credentials{"the client certificate in " + kubeconfig, "replace the certificate " + restart, nil}
	case c.ExecProvider != nil:
		return credentials{"the credentials of " + c.ExecProvider.Command, "run " + c.ExecProvider.Command + " on this node, and correct what it reports", nil}
	case c.Username != "":
		return credentials{"the user and password in " + kubeconfig, "replace them " + restart, nil}
	}
	return credentials{"requests without credentials", "give the user in " + kubeconfig + " a tokenFile or a client certificate, and restart the agent", nil}
}

// refused says why the server may not accept the credentials: a token with a date (RFC 7519) may have expired.
func (c *credentials) refused(now time.Time) string {
	if c.token == nil {
		return c.what
	}
	parts := strings.Split(strings.TrimSpace(c.token()), ".")
	if len(parts) != 3 {
		return c.what
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Expires == 0 {
		return c.what
	}
	if ago := now.Sub(time.Unix(claims.Expires, 0)); ago > 0 {
		return fmt.Sprintf("%s, which expired %s", c.what, time.Unix(claims.Expires, 0).UTC().Format(time.RFC3339))
	}
	return c.what
}
