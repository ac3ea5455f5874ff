// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/lab"
)

// The fabric is a network namespace of the lab's own, so these collide with
// nobody's.
const (
	apiServerPort            = 6443
	etcdAddress              = "127.0.0.1:2379"
	etcdPeerAddress          = "127.0.0.1:2380"
	controllerManagerAddress = "127.0.0.1:10257"
)

// writeFiles writes what the programs read, and makes the client.
func (c *Cluster) writeFiles() (err error) {
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
		if err := c.writeKubeconfig(user, token); err != nil {
			return err
		}
	}
	c.Client, err = c.newClient()
	return err
}

func (c *Cluster) etcdFlags() []string {
	return []string{
		"--data-dir=" + c.path("etcd"),
		"--listen-client=" + etcdAddress,
		"--listen-peer=" + etcdPeerAddress,
	}
}

func (c *Cluster) apiServerFlags() []string {
	return []string{
		"--etcd-servers=http://" + etcdAddress,
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--advertise-address=" + c.Address().Addr().String(),
		"--tls-cert-file=" + c.path("server.crt"),
		"--tls-private-key-file=" + c.path("server.key"),
		"--token-auth-file=" + c.path("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		fmt.Sprintf("--service-cluster-ip-range=%s,%s", lab.ServiceRange4, lab.ServiceRange6),
		// Pods need no account, and Nodes are as the test writes them.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// Without it a stop waits a minute for the end of watches.
		"--shutdown-watch-termination-grace-period=1s",
		// Nobody here has to be held back.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
	}
}

// controllers are those that make what a Service proxy reads.
var controllers = []string{
	"endpointslice-controller",
	"endpointslice-mirroring-controller",
	"service-cidr-controller",
	"node-lifecycle-controller",
}

func (c *Cluster) controllerManagerFlags() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(userControllers),
		"--controllers=" + strings.Join(controllers, ","),
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--kube-api-qps=10000",
		"--kube-api-burst=10000",
		// A node is not ready when its Ready condition says so; that nobody
		// renews its lease says nothing here.
		"--node-monitor-period=500ms",
		"--node-monitor-grace-period=24h",
	}
}

// apiServerReady asks the API server for its own state, and for the Service
// that it makes for itself last.
func (c *Cluster) apiServerReady(ctx context.Context) error {
	if _, err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	if _, err := c.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
		return err
	}
	_, err := c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	return err
}
