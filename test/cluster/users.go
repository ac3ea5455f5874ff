// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// The users of the cluster; [Cluster.Kubeconfig] has a file for each.
const (
	UserAdmin = "admin"
	UserAgent = "beeline" // the service account of agent.go

	userControllers = "kube-controller-manager"
	userProxy       = "kube-proxy"
)

// newTokens makes a token for each user but the agent, and returns the API
// server's file of them: token, name, uid, groups. RBAC comes with a role for
// kube-proxy's name; each of the controllers would need an account of its own.
func (c *Cluster) newTokens() []byte {
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

// Kubeconfig is the path of a user's kubeconfig file. It is right on all hosts
// of the lab.
func (c *Cluster) Kubeconfig(user string) string { return c.path(user + ".kubeconfig") }

func (c *Cluster) writeKubeconfig(user, token string) error {
	config := api.NewConfig()
	config.Clusters["lab"] = &api.Cluster{
		Server:                   "https://" + c.Address().String(),
		CertificateAuthorityData: c.credentials.certificate,
	}
	config.AuthInfos[user] = &api.AuthInfo{Token: token}
	config.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: user}
	config.CurrentContext = "lab"
	return clientcmd.WriteToFile(*config, c.Kubeconfig(user))
}

// newClient makes the test's own client, whose connections begin on the fabric.
func (c *Cluster) newClient() (*kubernetes.Clientset, error) {
	return kubernetes.NewForConfig(&rest.Config{
		Host:            "https://" + c.Address().String(),
		BearerToken:     c.tokens[UserAdmin],
		TLSClientConfig: rest.TLSClientConfig{CAData: c.credentials.certificate},
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		QPS:            -1, // no limit
		WarningHandler: rest.NoWarnings{},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.Lab.Host("fabric").Dial(ctx, network, address)
		},
	})
}
