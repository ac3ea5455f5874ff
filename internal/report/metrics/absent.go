// SPDX-License-Identifier: Apache-2.0

package metrics

// Absent are metrics of kube-proxy 1.36 that Beeline does not have, and what to use instead. A name that ends in "*"
// stands for all that begin like it. A test compares the list with kube-proxy.
var Absent = []struct{ Name, Why, Instead string }{
	{"kubeproxy_sync_proxy_rules_iptables_total", "there are no rules", "`beeline_table_entries{table=\"frontends\"}`"},
	{"kubeproxy_sync_proxy_rules_iptables_last", "there are no rules", "`rate(beeline_sync_updates_total[5m])`"},
	{"kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "no iptables-restore is run", "`beeline_sync_failures_total`, `beeline_sync_failing_frontends`"},
	{"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", "no iptables-restore is run", "`beeline_sync_failures_total`"},
	{"kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "there is no nftables transaction", "`beeline_sync_failures_total`, `beeline_sync_failing_frontends`"},
	{"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "there are no chains to clean up", "`beeline_sync_repairs_total`"},
	{"kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "netfilter's conntrack does not see the packets", "`beeline_edge_packets_total{reason=\"drop_invalid\"}`"},
	{"kubeproxy_iptables_localhost_nodeports_accepted_packets_total", "NodePorts on loopback addresses are served at the socket", "`beeline_socket_calls_total`"},
	{"kubernetes_build_info", "it would report Beeline's version as one of Kubernetes", "`beeline_build_info`"},
	{"kubernetes_feature_enabled", "there are no feature gates", "`/flagz`"},
	{"rest_client_exec_plugin_*", "of the client's plugins for credentials; only requests are counted", "`rest_client_requests_total`"},
	{"rest_client_transport_*", "of the client's transport cache; only requests are counted", "`rest_client_requests_total`"},
	{"apiserver_*", "of a library of the API server in kube-proxy, and always zero there", "-"},
	{"cardinality_enforcement_unexpected_categorizations_total", "no labels are replaced", "`beeline_metrics_dropped_series`"},
	{"disabled_metrics_total", "no metric can be disabled", "`beeline_metrics_dropped_series`"},
	{"hidden_metrics_total", "no metric is hidden", "`beeline_metrics_dropped_series`"},
	{"registered_metrics_total", "all metrics are in this table", "-"},
}
