// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"strings"

	"beeline.io/beeline/test/lab"
)

// The fabric is a network namespace of its own, so these collide with nothing.
const (
	apiServerPort            = 6443
	etcdAddress              = "127.0.0.1:2379"
	etcdPeerAddress          = "127.0.0.1:2380"
	controllerManagerAddress = "127.0.0.1:10257"
)

func etcdFlags(c *ControlPlane) []string {
	return []string{
		"--data-dir=" + c.path("etcd"),
		"--listen-client=" + etcdAddress,
		"--listen-peer=" + etcdPeerAddress,
	}
}

func apiServerFlags(c *ControlPlane) []string {
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
		// Pods need no account, and Nodes are as the caller writes them.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// Otherwise a stop waits a minute for the end of watches.
		"--shutdown-watch-termination-grace-period=1s",
		// No client here has to be throttled.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
	}
}

func controllerManagerFlags(c *ControlPlane) []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(userControllers),
		"--controllers=" + strings.Join(c.controllers, ","),
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--kube-api-qps=10000",
		"--kube-api-burst=10000",
		// A node is not ready when its Ready condition says so; an expired lease does not matter.
		"--node-monitor-period=500ms",
		"--node-monitor-grace-period=24h",
	}
}
