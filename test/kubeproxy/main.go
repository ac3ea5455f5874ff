// SPDX-License-Identifier: Apache-2.0

// Command kubeproxy is the kube-proxy of a newer Kubernetes than that of test/cluster, alone: the judge compares with
// it, too. A module of its own, because all parts of a Kubernetes have one version.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() { os.Exit(cli.Run(kubeproxy.NewProxyCommand())) }
