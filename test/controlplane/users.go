// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// The users of the control plane; [ControlPlane.Kubeconfig] has a file for each.
const (
	UserAdmin = "admin" // may do everything

	userControllers = "kube-controller-manager"
	userProxy       = "kube-proxy"
)

// writeCredentials writes the API server's credentials, its users, and a kubeconfig for each.
func (c *ControlPlane) writeCredentials() (err error) {
	if c.credentials, err = newCredentials(c.Address().Addr()); err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"server.crt":          c.credentials.certificate,
		"server.key":          c.credentials.key,
		"service-account.key": c.credentials.serviceAccountKeys,
		"tokens.csv":          c.newTokens(),
	} {
		if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
			return err
		}
	}
	for user, token := range c.tokens {
		if err := c.WriteKubeconfig(user, token); err != nil {
			return err
		}
	}
	return nil
}

// newTokens makes a token for each user, and returns the API server's token file: token, name, uid, groups.
// RBAC has a role for kube-proxy's name; each of the controllers would need an account of its own.
func (c *ControlPlane) newTokens() []byte {
	var file bytes.Buffer
	for _, u := range []struct{ user, name, group string }{
		{UserAdmin, "admin", "system:masters"},
		{userControllers, "system:kube-controller-manager", "system:masters"},
		{userProxy, "system:kube-proxy", ""},
	} {
		token := rand.Text()
		c.tokens[u.user] = token
		fmt.Fprintf(&file, "%s,%s,%s,%q\n", token, u.name, u.user, u.group)
	}
	return file.Bytes()
}

// Kubeconfig is the path of a user's kubeconfig file, valid on all hosts of the lab.
func (c *ControlPlane) Kubeconfig(user string) string { return c.path(user + ".kubeconfig") }

// WriteKubeconfig writes the kubeconfig of a user with this token, which may be one that the API server has
// issued for a service account.
func (c *ControlPlane) WriteKubeconfig(user, token string) error {
	config := api.NewConfig()
	config.Clusters["lab"] = &api.Cluster{Server: c.url(), CertificateAuthorityData: c.credentials.certificate}
	config.AuthInfos[user] = &api.AuthInfo{Token: token}
	config.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: user}
	config.CurrentContext = "lab"
	return clientcmd.WriteToFile(*config, c.Kubeconfig(user))
}

// ClientConfig is for clients in this program with administrator rights. They connect from the fabric.
func (c *ControlPlane) ClientConfig() *rest.Config {
	return &rest.Config{
		Host: c.url(), BearerToken: c.tokens[UserAdmin],
		TLSClientConfig: rest.TLSClientConfig{CAData: c.credentials.certificate},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.Lab.Host("fabric").Dial(ctx, network, address)
		},
	}
}
