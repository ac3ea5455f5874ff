// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"beeline.io/beeline/internal/api"
)

// A Family declares a metric.
type Family struct {
	Name    string
	Kind    api.MetricKind
	Labels  []string
	Help    string
	Buckets []float64 // of a histogram; nil if a component chooses them
}

const (
	counterKind   = api.CounterMetric
	gaugeKind     = api.GaugeMetric
	histogramKind = api.HistogramMetric
)

// A Group is a part of the table in metrics.md.
type Group struct {
	Title, Text string
	Families    []Family
}

// Groups declare all metrics, except those of the Go runtime and the process. A test compares them with those of a
// running agent.
var Groups = []Group{
	{"The agent", "", []Family{
		{"beeline_build_info", gaugeKind, []string{"version", "goversion"}, "1, with the version of the agent and of Go.", nil},
		{"beeline_start_time_seconds", gaugeKind, nil, "When the agent started, in seconds since 1970.", nil},
		{"beeline_condition", gaugeKind, []string{"code", "severity", "object"}, "Conditions by code; 0 for those that do not hold. object is a device, table, hook or address of the node, and empty where the number of objects is not bounded.", nil},
		{"beeline_conditions_timestamp_seconds", gaugeKind, nil, "When the conditions were last determined, in seconds since 1970. A scrape shows those of the scrape before, unless that was more than 2 minutes ago.", nil},
		{"beeline_metrics_dropped_series", gaugeKind, []string{"metric"}, "Series of a metric that exceed --metrics-max-series and are not exported.", nil},
		{"beeline_metrics_read_errors_total", counterKind, []string{"source"}, "Failures to read metrics. Those of the source may be missing in the scrape.", nil},
	}},
	{"Objects and tables", "", []Family{
		{"beeline_table_entries", gaugeKind, []string{"table"}, "Entries of a table that are in use. Those of the table affinity are counted once a minute.", nil},
		{"beeline_table_limit", gaugeKind, []string{"table"}, "Maximum number of entries of a table.", nil},
		{"beeline_sync_complete", gaugeKind, nil, "1 if the tables have held the complete state of the source since the agent started.", nil},
		{"beeline_sync_applied_total", counterKind, nil, "Changes of objects, addresses or health that were applied to the tables.", nil},
		{"beeline_sync_updates_total", counterKind, nil, "Frontends changed in the tables.", nil},
		{"beeline_sync_pending_frontends", gaugeKind, nil, "Frontends whose change is not in the tables yet.", nil},
		{"beeline_sync_failing_frontends", gaugeKind, nil, "Frontends that could not be written to the tables and are retried.", nil},
		{"beeline_sync_left_out_objects", gaugeKind, nil, "Objects that do not fit into the tables or exceed their share, completely or in part.", nil},
		{"beeline_sync_failures_total", counterKind, nil, "Changes of frontends that failed.", nil},
		{"beeline_sync_retries_total", counterKind, nil, "Retries of failed changes.", nil},
		{"beeline_sync_repairs_total", counterKind, nil, "Differences in the tables that audits found and repaired.", nil},
		{"beeline_sync_last_success_timestamp_seconds", gaugeKind, nil, "When the tables last held everything that was wanted, in seconds since 1970; 0 for never.", nil},
		{"beeline_sync_last_audit_timestamp_seconds", gaugeKind, nil, "When the tables were last compared with what is wanted, in seconds since 1970; 0 for never.", nil},
	}},
	{"The source of objects", "The rows but the last are only there with an API server.", []Family{
		{"beeline_source_connected", gaugeKind, nil, "1 while the API server answers.", nil},
		{"beeline_source_last_answer_timestamp_seconds", gaugeKind, nil, "When the API server last sent an object or a bookmark, in seconds since 1970; 0 for never.", nil},
		{"beeline_source_lists_total", counterKind, []string{"kind"}, "Complete lists of a kind that were received. More than one means that a watch could not continue.", nil},
		{"beeline_source_errors_total", counterKind, []string{"kind"}, "Lists that failed, and watches that ended with an error.", nil},
		{"beeline_source_problems", gaugeKind, []string{"severity"}, "Problems of the objects: an error keeps the current state from taking effect, a warning does not.", nil},
	}},
	{"Programs and devices", "", []Family{
		{"beeline_hooks_attached", gaugeKind, nil, "Cgroup hooks with an attached program.", nil},
		{"beeline_hooks_wanted", gaugeKind, nil, "Cgroup hooks that should have one.", nil},
		{"beeline_datapath_info", gaugeKind, []string{"tables"}, "1, with the version of the tables' layout.", nil},
		{"beeline_edge_devices", gaugeKind, []string{"mode"}, "Devices by how the edge serves them: xdp, generic xdp, tc, or none if it could not be attached.", nil},
		{"beeline_edge_packets_total", counterKind, []string{"reason"}, "Packets at devices, by what the edge did with them ([reasons](debug.md#reasons)).", nil},
		{"beeline_prefilter_enabled", gaugeKind, nil, "1 while the prefilter is enabled. Without it, packets and calls that are not for Services take longer. It is disabled at the start, and for a second or two when ServiceCIDRs change; then it stays disabled until the edge is attached to all of its devices.", nil},
		{"beeline_socket_calls_total", counterKind, []string{"event"}, "Calls of sockets, by what the hooks did ([events](debug.md#calls-of-sockets)).", nil},
		{"beeline_sockets_ended_total", counterKind, []string{"protocol"}, "Sockets that were ended because their backend was removed.", nil},
	}},
	{"The pod shortcut", "Only with --pod-devices.", []Family{
		{"beeline_pod_shortcut_packets_total", counterKind, []string{"path"}, "Packets at devices of pods and at those that lead to other nodes, by their path: path_... for those that took the shortcut, stack_... for those that did not, and why.", nil},
		{"beeline_pod_shortcut_addresses", gaugeKind, []string{"state"}, "Addresses of pods of this node whose packets to other pods take the shortcut, and of those whose packets take the stack because of packet filters.", nil},
	}},
	{"Flow offload", "Only with --offload-devices.", []Family{
		{"beeline_offload_packets_total", counterKind, []string{"path"}, "Packets at the offload devices: cache for those that the flow cache has forwarded, merged ones counted once; for others of flows in the cache, and for candidates, what happened to them.", nil},
		{"beeline_offload_bytes_total", counterKind, nil, "Bytes from the IP header on that the flow cache has forwarded, of merged packets as merged.", nil},
		{"beeline_offload_entries", gaugeKind, nil, "Entries of the flow cache, two for each flow.", nil},
		{"beeline_offload_entries_limit", gaugeKind, nil, "Maximum number of entries of the flow cache.", nil},
		{"beeline_offload_learned_total", counterKind, nil, "Entries that flow offload has added to its flow cache.", nil},
		{"beeline_offload_ended_total", counterKind, []string{"reason"}, "Entries that have left the flow cache: closed (FIN or RST), conntrack (the kernel's conntrack no longer has the flow), route (the route or next hop has changed), changed (packet filters or devices have changed) or idle.", nil},
		{"beeline_offload_refused", gaugeKind, nil, "Directions of flows that flow offload has left on the stack for a reason, of the last five minutes.", nil},
		{"beeline_offload_provider_info", gaugeKind, []string{"provider"}, "1, with what forwards the flows: cache, flowtable, flowtable-hardware, or none if nothing does.", nil},
		{"beeline_offload_flowtable_replaced_total", counterKind, nil, "How often all flows have returned to the stack because the kernel's flowtable was replaced: after changes of routes, devices, next hops and rules.", nil},
	}},
	{"The sidecar shortcut", "Only with --mesh-cgroups or --mesh-pods.", []Family{
		{"beeline_mesh_pods", gaugeKind, []string{"state"}, "Pods with a proxy: served if their connections go to their proxy in both directions, else waiting.", nil},
		{"beeline_mesh_connections_total", counterKind, []string{"direction"}, "Connections that were redirected to a proxy: outbound for calls of connect(2), inbound for SYNs from other hosts.", nil},
		{"beeline_mesh_messages_total", counterKind, []string{"path"}, "With --mesh-sockmap, messages between applications and proxies: sockmap for those that skipped TCP, tcp for the others.", nil},
		{"beeline_mesh_sockets_joined_total", counterKind, nil, "With --mesh-sockmap, sockets whose messages may skip TCP.", nil},
		{"beeline_mesh_sockets_unserved_total", counterKind, []string{"reason"}, "With --mesh-sockmap, sockets that always take TCP: table-full if there was no room in the tables, other-sockmap if they were in a sockmap of another program.", nil},
		{"beeline_mesh_sockets_stuck_total", counterKind, nil, "With --mesh-sockmap, sockets whose program has begun to read by splice(2) while messages waited past TCP. If it does not read them in another way within two seconds, the connection is aborted.", nil},
		{"beeline_mesh_dns_total", counterKind, nil, "With --mesh-dns-port, datagrams and connections to name servers that were redirected to a proxy.", nil},
		{"beeline_mesh_refused_total", counterKind, nil, "SYNs from other hosts that were refused because no proxy listened in the pod.", nil},
		{"beeline_mesh_unnamed_total", counterKind, nil, "Connections whose proxy did not learn the destination, because there was no memory or too many connections were beginning.", nil},
		{"beeline_mesh_listeners_unserved_total", counterKind, nil, "Sockets of proxies that listen for inbound connections and have no place in the table, which has 16 for each pod.", nil},
	}},
	{"The host stack", "Only with --mesh-hoststack=on or off: of programs in pods with a proxy that have the host stack's library. They are looked at every 2 seconds. What a program counted before the agent's first look, and after the last one before it ended, is not there.", []Family{
		{"beeline_mesh_hoststack_programs", gaugeKind, []string{"state"}, "Programs with the library, processes that share their connections by fork counted once: on, off if they keep to the kernel, idle if no connection could use rings so far, unread if the agent cannot read or does not trust what they say.", nil},
		{"beeline_mesh_hoststack_connections", gaugeKind, nil, "Connections that have rings, each end counted, also those that have gone back to the kernel.", nil},
		{"beeline_mesh_hoststack_attached_total", counterKind, nil, "Connections that were put on rings, each end counted.", nil},
		{"beeline_mesh_hoststack_returned_total", counterKind, nil, "Connections that went back to the kernel because of --mesh-hoststack=off. One end or both may count it.", nil},
		{"beeline_mesh_hoststack_refused_total", counterKind, []string{"reason"}, "Ends of connections that stay on the kernel: elsewhere if the other end is on another host or in another network namespace; no-answer if it has no library or does not admit the server, counted after 1024 operations; kept if the program has forked before, passed the descriptor on or asked for kernel TLS or SO_ZEROCOPY. Attempts: limit (BEELINE_HOSTSTACK_SESSIONS), memory (memory, descriptors or names), offer (an offer that is not what it has to be).", nil},
		{"beeline_mesh_hoststack_bytes_total", counterKind, []string{"direction"}, "Payload that programs sent into rings and received from them.", nil},
		{"beeline_mesh_hoststack_violations_total", counterKind, nil, "Connections that were reset because the other end wrote into the rings what cannot be.", nil},
	}},
	{"Connection tracking", "A pass of garbage collection counts the entries, every 10 to 60 seconds. A flow has two entries, with DSR one.", []Family{
		{"beeline_conntrack_entries", gaugeKind, []string{"table", "protocol", "state"}, "Conntrack entries at the last pass. Table conntrack has those of assured flows, unreplied all others.", nil},
		{"beeline_conntrack_limit", gaugeKind, []string{"table"}, "Maximum number of entries.", nil},
		{"beeline_conntrack_expired_flows_total", counterKind, nil, "Flows that garbage collection deleted because they were idle or closed.", nil},
		{"beeline_conntrack_gc_timestamp_seconds", gaugeKind, nil, "When the last pass began, in seconds since 1970.", nil},
		{"beeline_conntrack_gc_duration_seconds", gaugeKind, nil, "Duration of the last pass.", nil},
		{"beeline_snat_flows", gaugeKind, []string{"protocol"}, "Flows with a SNAT port at the last pass.", nil},
		{"beeline_snat_ports_used_max", gaugeKind, nil, "SNAT ports in use at the last pass to the port of the backend that has most, without those of closed connections.", nil},
		{"beeline_snat_ports_limit", gaugeKind, nil, "SNAT ports for the flows to one port of a backend, for each address of the node and each protocol.", nil},
	}},
	{"Traffic of Services at devices", "Of clients outside the cluster, and others whose packets the edge handles. Counted by a pass of garbage collection, every 10 to 60 seconds. A Service has series from its first flow on. Packets and bytes of flows that are evicted between two passes are not counted.", []Family{
		{"beeline_service_flows_total", counterKind, []string{"namespace", "service"}, "New flows.", nil},
		{"beeline_service_refused_total", counterKind, []string{"namespace", "service"}, "New flows that were refused with TCP RST or an ICMP error.", nil},
		{"beeline_service_dropped_total", counterKind, []string{"namespace", "service"}, "Dropped packets.", nil},
		{"beeline_service_packets_total", counterKind, []string{"namespace", "service", "direction"}, "Packets that clients sent and received. With DSR the node does not see what they receive.", nil},
		{"beeline_service_bytes_total", counterKind, []string{"namespace", "service", "direction"}, "Bytes of these packets, from the IP header on.", nil},
		{"beeline_backend_flows", gaugeKind, []string{"namespace", "service", "backend"}, "Tracked flows of each backend at the last pass; only with --edge-stats-per-backend.", nil},
	}},
	{"TCP connections of sockets", "Of programs on this node to Services, counted when they open and close. Not with --socket-stats=false. A Service has series from its first connection on.",
		append(connectionFamilies("beeline_socket_", "namespace", "service"),
			Family{"beeline_socket_connections_uncounted_total", counterKind, nil, "Connections to Services that are in no other metric, because there was no room in the tables.", nil})},
	{"TCP connections of sockets to each backend", "Only with --socket-stats-per-backend.",
		connectionFamilies("beeline_socket_backend_", "namespace", "service", "backend")},
	{"Health checks", "", []Family{
		{"beeline_health_check_backends", gaugeKind, []string{"state"}, "Backends with a health check that are up and down.", nil},
	}},
	{"Under kube-proxy's names", "A sync is one change of the tables. It writes both families, and counts for each.", []Family{
		{"kubeproxy_sync_proxy_rules_duration_seconds", histogramKind, []string{"ip_family"}, "Duration of a sync: a change of objects, or an audit.", exponential},
		{"kubeproxy_sync_full_proxy_rules_duration_seconds", histogramKind, []string{"ip_family"}, "Duration of a sync that compares all of the tables: the first one, and audits.", exponential},
		{"kubeproxy_sync_partial_proxy_rules_duration_seconds", histogramKind, []string{"ip_family"}, "Duration of a sync that writes changes.", exponential},
		{"kubeproxy_sync_proxy_rules_last_timestamp_seconds", gaugeKind, []string{"ip_family"}, "When the tables last held everything that was wanted, in seconds since 1970. Audits confirm it.", nil},
		{"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", gaugeKind, []string{"ip_family"}, "When a change last arrived, in seconds since 1970.", nil},
		{"kubeproxy_network_programming_duration_seconds", histogramKind, []string{"ip_family"}, "Time from the change of a pod or Service, by the annotation endpoints.kubernetes.io/last-change-trigger-time of the EndpointSlice, until the tables held its effect.", programming},
		{"kubeproxy_sync_proxy_rules_endpoint_changes_pending", gaugeKind, nil, "Changed EndpointSlices that wait for a sync.", nil},
		{"kubeproxy_sync_proxy_rules_endpoint_changes_total", counterKind, nil, "Changed EndpointSlices. Changes that arrive during a sync count once for each object.", nil},
		{"kubeproxy_sync_proxy_rules_service_changes_pending", gaugeKind, nil, "Changed Services that wait for a sync.", nil},
		{"kubeproxy_sync_proxy_rules_service_changes_total", counterKind, nil, "Changed Services. Changes that arrive during a sync count once for each object.", nil},
		{"kubeproxy_sync_proxy_rules_no_local_endpoints_total", gaugeKind, []string{"traffic_policy", "ip_family"}, "Service ports with a traffic policy of Local that have endpoints, but none on this node.", nil},
		{"kubeproxy_proxy_healthz_total", counterKind, []string{"code"}, "Answers of /healthz by their code.", nil},
		{"kubeproxy_proxy_livez_total", counterKind, []string{"code"}, "Answers of /livez by their code.", nil},
		{"kubeproxy_conntrack_reconciler_sync_duration_seconds", histogramKind, []string{"ip_family"}, "Duration of a search for UDP flows whose backend no longer serves.", exponential},
		{"kubeproxy_conntrack_reconciler_deleted_entries_total", counterKind, []string{"ip_family"}, "UDP flows that such a search deleted.", nil},
	}},
	{"Requests to the API server", "Under the names of client-go, as kube-proxy has them.", []Family{
		{"rest_client_requests_total", counterKind, []string{"code", "method", "host"}, "HTTP requests.", nil},
		{"rest_client_request_duration_seconds", histogramKind, []string{"verb", "host"}, "Time until the headers of the response arrived.", restLatency},
		{"rest_client_rate_limiter_duration_seconds", histogramKind, []string{"verb", "host"}, "Time that requests waited for the agent's own rate limit.", restLatency},
		{"rest_client_request_size_bytes", histogramKind, []string{"verb", "host"}, "Size of requests.", restSize},
		{"rest_client_response_size_bytes", histogramKind, []string{"verb", "host"}, "Size of responses.", restSize},
		{"rest_client_request_retries_total", counterKind, []string{"code", "verb", "host"}, "Requests that were repeated.", nil},
	}},
	{"The endpoint itself", "", []Family{
		{"promhttp_metric_handler_requests_total", counterKind, []string{"code"}, "Scrapes by their code.", nil},
		{"promhttp_metric_handler_requests_in_flight", gaugeKind, nil, "Scrapes that are being answered.", nil},
		{"promhttp_metric_handler_errors_total", counterKind, []string{"cause"}, "Scrapes from which metrics are missing.", nil},
	}},
}

// connectionFamilies are the metrics of TCP connections of sockets.
func connectionFamilies(prefix string, labels ...string) []Family {
	return []Family{
		{prefix + "connections_total", counterKind, labels, "Connections started: SYNs without retransmissions.", nil},
		{prefix + "connections_failed_total", counterKind, labels, "Connections that were reset, timed out or were given up before they were established.", nil},
		{prefix + "connections_closed_total", counterKind, labels, "Established connections that have ended.", nil},
		{prefix + "connections_open", gaugeKind, labels, "Established connections.", nil},
		{prefix + "sent_bytes_total", counterKind, labels, "Payload sent, without retransmissions, by connections that have ended.", nil},
		{prefix + "received_bytes_total", counterKind, labels, "Payload received by connections that have ended.", nil},
		{prefix + "retransmits_total", counterKind, labels, "Segments retransmitted, SYNs included, by connections that have ended.", nil},
		{prefix + "handshake_seconds", histogramKind, labels, "Time from the SYN to the SYN-ACK of established connections.", nil},
	}
}

// The buckets of kube-proxy 1.36 (pkg/proxy/metrics) and of its client (component-base), in seconds and bytes.
var (
	exponential = prometheus.ExponentialBuckets(0.001, 2, 15)
	// kube-proxy's function for joining buckets puts one for 0 before them.
	programming = slices.Concat([]float64{0}, prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
	restLatency = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	restSize    = []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
)

// Declared returns all metrics by their names.
func Declared() map[string]Family {
	all := map[string]Family{}
	for _, g := range Groups {
		for _, f := range g.Families {
			all[f.Name] = f
		}
	}
	return all
}

// The constructors panic for a metric that is not declared, or as another kind: they run at the start.

func declared(name string, kind api.MetricKind) Family {
	f, ok := Declared()[name]
	if !ok || f.Kind != kind {
		panic("metric " + name + " is not declared as " + string(kind))
	}
	return f
}

func counter(name string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: declared(name, counterKind).Help})
}

func gauge(name string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: declared(name, gaugeKind).Help})
}

func counterVec(name string) *prometheus.CounterVec {
	f := declared(name, counterKind)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: f.Help}, f.Labels)
}

func gaugeVec(name string) *prometheus.GaugeVec {
	f := declared(name, gaugeKind)
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: f.Help}, f.Labels)
}

func histogramVec(name string) *prometheus.HistogramVec {
	f := declared(name, histogramKind)
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: f.Help, Buckets: f.Buckets}, f.Labels)
}
