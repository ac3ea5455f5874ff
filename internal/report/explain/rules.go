// SPDX-License-Identifier: Apache-2.0

package explain

// Rules are the rules that an Answer can name, in a sentence each: docs/operate/semantics.md has them in full.
var Rules = map[string]string{
	"R16": "a ClusterIP follows internalTrafficPolicy",
	"R17": "NodePorts, external IPs and load balancer addresses follow externalTrafficPolicy, for pods and nodes too",
	"R18": "with externalTrafficPolicy Local only clients outside are kept on this node",
	"R19": "the source becomes this node's address if the backend is on another node",
	"R20": "a ClusterIP is served to clients outside, unless --refuse-outside-cluster-ips",
	"R21": "another port of a ClusterIP is rejected, and an unused address of a ServiceCIDR dropped",
	"R22": "a NodePort is served at the node's primary addresses, or those of --nodeport-addresses",
	"R25": "loadBalancerSourceRanges holds for every client of a load balancer address",
	"R27": "session affinity: a client keeps its backend until the timeout",
	"R33": "a hostPort of a pod of this node",
}
