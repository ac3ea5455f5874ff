// SPDX-License-Identifier: Apache-2.0

package condition

// The message of a condition is written where the New method of its kind is called: search for AgentNotRunning.New(.
// Its description and remedy are here.

// The agent and its environment.
var (
	AgentNotRunning = register("AgentNotRunning", Error,
		"No agent holds the pins. The attached programs keep serving with the current tables; changes to Services and endpoints do not take effect.",
		"start the agent: `systemctl start beeline`, or find out why its pod is not running. If it ends again and again, the end of its log says why: `journalctl -u beeline`, `kubectl logs --previous`")
	AgentNotAnswering = register("AgentNotAnswering", Error,
		"An agent holds the pins and has not answered for a second, or does not listen on the socket. It starts, ends again and again, is stopped, or hangs. The attached programs keep serving with the pinned tables; changes of Services and endpoints may not take effect.",
		"ask again. If that lasts, see the end of its log (`journalctl -u beeline`, `kubectl logs --previous`) and the state of its process (`ps -o stat,wchan -p PID`: T is stopped, D waits in the kernel), and restart it")
	Draining = register("Draining", Warning,
		"`beeline cleanup --drain` is running: new connections and flows pass to another proxy of the node. Flows of clients outside the cluster that Beeline has translated are served until they end, or until the time that the message names; then everything is detached.",
		"wait for its end, with another proxy on the node; or end it, and start the agent, which serves all Services again")
	DrainInterrupted = register("DrainInterrupted", Error,
		"`beeline cleanup --drain` was ended half way, or an agent that started after it ended before it had read all Services. New connections and flows pass to another proxy of the node, and fail if there is none. Flows that Beeline has translated are served, and changes do not take effect.",
		"repeat `beeline cleanup --drain`, which waits for these flows and detaches everything; or start the agent, which serves all Services again")
	NotSynced = register("NotSynced", Error,
		"The agent has not read a complete state from its source since it started. Tables of an earlier agent stay in use; on a new node nothing is attached.",
		"see \"Source\" in `beeline status` for what the agent waits for, or for the errors in the manifests")
	OtherNetworkNamespace = register("OtherNetworkNamespace", Error,
		"The command runs in another network namespace than the agent's. It looks for devices and sockets in the wrong place.",
		"run the command where the agent runs: `nsenter --net=/proc/PID/ns/net beeline ...` with the agent's PID")
	NodeUnknown = register("NodeUnknown", Error,
		"There are Node objects, but none has the name of this node. There are no NodePorts, and only endpoints that name this node count as local.",
		"set --node-name to the name of this node's Node object")
	NodeAddressMissing = register("NodeAddressMissing", Error,
		"No device in the agent's network namespace has an address of the node's Node object. The agent runs in a pod's network namespace, or with another node's name.",
		"run the agent in the node's network namespace (in a pod: hostNetwork: true), and check --node-name")
	NodeDeleted = register("NodeDeleted", Warning,
		"The node's Node object has been deleted (R39). Its last addresses, zone and podCIDRs stay in use.",
		"register the node again, or take the node out of service")
	NodesWithoutPodCIDRs = register("NodesWithoutPodCIDRs", Warning,
		"Other Nodes have no podCIDRs. Their pods count as clients outside the cluster, and externalTrafficPolicy applies to them.",
		"set --pod-networks to the pod networks")
	ListenFailed = register("ListenFailed", Warning,
		"The agent cannot listen on the address of an HTTP endpoint, usually because another program uses the port. Probes and monitoring that ask there get no answer or another program's.",
		"stop the program that the port belongs to (kube-proxy uses the same ports), or set --healthz-bind-address or --metrics-bind-address; the agent retries every two seconds").ofNode()
	AgentStalled = register("AgentStalled", Error,
		"The agent's loop has not completed a step for a minute. The tables stay as they are, and changes of objects take no effect. /livez answers 503, so that the kubelet restarts the agent.",
		"restart the agent, and report its log")
	ChangesLate = register("ChangesLate", Error,
		"Changes are not in the tables a minute after they arrived, although there is room for them. Earlier entries keep serving. /livez and /healthz answer 503.",
		"see ObjectNotApplied and NetworksNotApplied for the reason; the agent retries")
	DatapathDamaged = register("DatapathDamaged", Error,
		"Programs, pins or tables were removed or detached, and the agent cannot restore them. /healthz and healthCheckNodePorts answer 503.",
		"see the reason in the message; the agent retries every second")
	SelfProbeFailed = register("SelfProbeFailed", Error,
		"With --self-probe: the agent's own connections through its tables fail. Sockets of this node may not reach Services. /healthz and healthCheckNodePorts answer 503.",
		"see the reason in the message, and the other conditions; the agent itself must run below --cgroup-root. It repairs hooks every second and tables every --audit-interval")
	PodNetworkIsServiceCIDR = register("PodNetworkIsServiceCIDR", Warning,
		"A network is both a ServiceCIDR and a pod network. It is treated as a ServiceCIDR, and pods there count as clients outside the cluster.",
		"change the Nodes' podCIDRs or --pod-networks")
)

// The source of objects.
var (
	SourceUnreachable = register("SourceUnreachable", Error,
		"The API server has not answered for more than 30 seconds. The last state stays in use, and the agent sees no changes.",
		"check that the API server is running, that this node reaches it, and that the kubeconfig is correct")
	SourceError = register("SourceError", Error,
		"The source cannot be read: a manifest is invalid, or the API server refuses to list objects. The last valid state stays in use as a whole.",
		"correct what the message names; the agent applies the correction at once")
	SourceWarning = register("SourceWarning", Warning,
		"An object, or a part of one, cannot take effect as written. The rest of the source does.",
		"correct what the message names; the agent applies the correction at once")
	SourceNote = register("SourceNote", Info,
		"The source has objects of kinds that Beeline does not use. They are skipped.",
		"nothing; or keep the manifests for Beeline in a separate directory")
)

// Objects and the tables.
var (
	ObjectNotApplied = register("ObjectNotApplied", Error,
		"Some addresses of an object could not be written to the tables. The agent retries; earlier entries keep serving.",
		"see the reason in the message; if a table is full, raise the flag that the message names")
	ObjectLeftOut = register("ObjectLeftOut", Error,
		"An object is not served at all: it does not fit into the tables, or exceeds its share of them. It is added when there is room.",
		"raise the limit or the share that the message names, and restart the agent")
	NetworksNotApplied = register("NetworksNotApplied", Error,
		"Not all ServiceCIDRs and pod networks are in the tables. Packets to unused ClusterIPs may leave the node, and pods may count as clients outside the cluster.",
		"see the reason in the message; the agent retries")
	BalancersNotApplied = register("BalancersNotApplied", Error,
		"Not all networks of balancers are in the tables. Packets that they encapsulate for backends on this node may be dropped.",
		"see the reason in the message; give fewer and larger networks with --dsr-balancers")
	TableNearlyFull = register("TableNearlyFull", Warning,
		"A table is more than 90 percent full. Objects that do not fit are not served.",
		"raise the flag that the message names, or remove objects").ofNode()
	AddressTaken = register("AddressTaken", Error,
		"An address and port that an object requests belongs to another object, or to another port of the same object. Only one of them is served.",
		"change one of them")
	PortNotUnique = register("PortNotUnique", Error,
		"Two ports of a Service have the same name and protocol. The second one is not served.",
		"give each port a different name")
	HostIPNotHere = register("HostIPNotHere", Error,
		"The hostIP of a Pod's hostPort is not an address of this node. The port is not served.",
		"set hostIP to an address of the node, or leave it empty for all addresses")
	ExternalIPRefused = register("ExternalIPRefused", Warning,
		"--refuse-foreign-external-ips is set, and an external IP is an address of a Node or of the API server. It is ignored.",
		"remove the external IP from the Service")
	SCTPPortDiffers = register("SCTPPortDiffers", Error,
		"An SCTP port differs from the port of its endpoints. SCTP ports are never translated (docs/operate/sctp.md), so packets to this port are dropped.",
		"set both to the same port")
	EndpointsMissing = register("EndpointsMissing", Error,
		"A Service in manifests has a port for which no EndpointSlice has endpoints: the slice is missing or empty, or its ports have other names. Clients are rejected.",
		"add the EndpointSlice or its endpoints, or give its port the name of the Service's port")
	EndpointsUnusable = register("EndpointsUnusable", Error,
		"All endpoints of a port of a Service in manifests have weight 0, or are not ready. Clients are rejected.",
		"give an endpoint another weight, or make it ready; remove the Service if nobody is to reach it")
	EndpointSliceUnused = register("EndpointSliceUnused", Error,
		"An EndpointSlice in manifests belongs to a Service that does not exist, or that has none of its ports. It has no effect.",
		"correct the label kubernetes.io/service-name, the namespace, or the names and protocols of the ports")
	EndpointsIndistinct = register("EndpointsIndistinct", Warning,
		"Two endpoints on another node differ only in their ports, and the Service uses DSR with ipip, which carries no port. One of them gets the packets of both.",
		"set the annotation beeline.io/dsr to geneve or opt, or give the endpoints the same port")
	ClusterIPLeftToNode = register("ClusterIPLeftToNode", Info,
		"A rule of this node (notrack, in nftables or table raw of iptables) exempts a ClusterIP from conntrack, and a socket of the node has bound it, as with NodeLocal DNSCache. Clients of this node reach that socket, as with kube-proxy. When the socket or the rule is gone they reach the Service again.",
		"nothing, if a cache on the node is to answer; otherwise remove the rule")
	AnnotationWithoutEffect = register("AnnotationWithoutEffect", Warning,
		"An annotation conflicts with other settings of the Service. It has no effect.",
		"change the annotation or the setting that the message names")
	AnnotationInvalid = register("AnnotationInvalid", Warning,
		"An annotation has an invalid value. It is ignored; a health check that was valid before continues.",
		"use one of the values that the message names")
	AnnotationUnknown = register("AnnotationUnknown", Warning,
		"An object has an annotation beeline.io/... that does not exist, or that objects of its kind do not have; or one with a prefix that is nearly beeline.io/, and a name that is nearly that of such an annotation. It has no effect.",
		"correct the name, move it to the object that the message names, or remove it")
	HealthCheckNodePortNotServed = register("HealthCheckNodePortNotServed", Error,
		"The agent cannot listen at a Service's healthCheckNodePort, because another program or a HostPort has the port, or because there are as many such listeners as its limit of open files allows (R34). Load balancers that check it send nothing to this node, or get that program's answers.",
		"stop the program that uses the port, or recreate the Service with another healthCheckNodePort: the agent retries every two seconds; for the limit see the message")
	EndpointsLost = register("EndpointsLost", Warning,
		"The last endpoint of a Service that takes new connections is gone, and clients are refused. This is an Event of the Service, and never in `beeline status`: a Service without endpoints is as its objects ask.",
		"see why its pods are not ready")
	ServiceRefuses = register("ServiceRefuses", Warning,
		"In the last minute, all that clients outside sent to a port of a Service was refused (TCP reset, or port unreachable), and nothing was served: the Service has no endpoint that is ready. "+
			"Or packets to one of its addresses were dropped, whatever its other addresses serve: the address has traffic policy Local, and no endpoint is on this node. Load balancers and routers must send such a Service only to nodes whose healthCheckNodePort answers 200. The packets are counted by the passes of conntrack's garbage collection, every ten seconds, or up to a minute with very many flows: the condition begins with the next pass, and ends a minute after the last such packet. "+
			"Refused connections of this node's own programs are not counted by Service: `connect` tells the program (docs/operate/debug.md#calls-of-sockets).",
		"`beeline service show NAME` lists the endpoints: make one ready, or remove the Service, or stop who sends to this node")
	HealthCheckUnlikely = register("HealthCheckUnlikely", Warning,
		"A port that is usually served with TLS (443, or named https) is checked by http, or one without it (80, http) by https. Its backends fail such a check, or it says nothing of them.",
		"set the annotation beeline.io/health-check-port to the port that the check is for, or beeline.io/health-check to tcp, or make two Services")
	AllBackendsDown = register("AllBackendsDown", Error,
		"All backends of a Service, or of one of its ports in one family, fail their health check. Clients are rejected, unless the check's annotation all-down sends them to the backends anyway.",
		"see the reason in the message; restart the backends, or correct the check's annotations")
	BackendsDown = register("BackendsDown", Warning,
		"Some backends of a Service fail their health check. New connections go to the others.",
		"see the reason in the message; restart the backend, or correct the check's annotations")
)

// Sockets and pods of this node.
var (
	PinsUnreadable = register("PinsUnreadable", Error,
		"Pins are missing or cannot be read, because another program removed them. A running agent restores them within two seconds.",
		"find out what removes files in the directory of the pins; start the agent if none is running")
	HookDetached = register("HookDetached", Error,
		"A program is not attached, because its cgroup is gone or another program detached it. A running agent attaches it again.",
		"check that the cgroup of --cgroup-root exists, and that no other tool detaches programs there").ofNode()
	HooksMissing = register("HooksMissing", Error,
		"Not all socket programs are attached. Some system calls are not translated.",
		"see the agent's log for the reason, and restart it")
	BindNotProtected = register("BindNotProtected", Warning,
		"--bind-protection is set, but this kernel does not support it. Programs on the node may bind NodePorts and HostPorts, and never receive a connection.",
		"use a kernel with CONFIG_DEBUG_INFO_BTF, or set --bind-protection=false")
	PortHeld = register("PortHeld", Warning,
		"A socket of this node is bound to a NodePort or HostPort. Connections to it go to the Service or Pod, not to the socket.",
		"configure the process to use another port, or change the NodePort or HostPort")
	PortHoldersUnknown = register("PortHoldersUnknown", Warning,
		"The kernel does not list the sockets of this node. Beeline cannot tell which of them are bound to NodePorts and HostPorts.",
		"load the kernel module that the message names (inet_diag, tcp_diag, udp_diag, sctp_diag)")
	SocketsNotEnded = register("SocketsNotEnded", Warning,
		"Not all sockets of removed backends could be terminated. Their programs wait for replies that never arrive.",
		"see the reason in the message; --terminate-sockets chooses another method")
	PodNotFound = register("PodNotFound", Warning,
		"A pod has opted out of the socket shortcut, but still uses it, because its network namespace was not found.",
		"see the reason in the message; set --pod-cgroups to the kubelet's cgroup directory")
	PodSearchFailed = register("PodSearchFailed", Warning,
		"The cgroups of pods cannot be searched or watched completely. Pods that have opted out of the socket shortcut are found late or never.",
		"mount the node's cgroups where the agent runs, or set --pod-cgroups to the kubelet's cgroup directory")
)

// The edge: clients outside the cluster.
var (
	EdgeOff = register("EdgeOff", Error,
		"Clients outside the cluster are not served, because there is no free range of SNAT ports.",
		"free a range of ports, and set --snat-ports to it")
	DeviceNotServed = register("DeviceNotServed", Error,
		"The programs cannot be attached to a device, or cannot read its packets. Clients behind it are not served.",
		"see the reason in the message; set --devices to the devices to serve").ofNode()
	DeviceModeRefused = register("DeviceModeRefused", Error,
		"A device is served, but not as --edge-mode or --edge-xdp-dispatcher requests.",
		"remove the obstacle that the message names, or set --edge-mode=auto").ofNode()
	DeviceNotFound = register("DeviceNotFound", Error,
		"--devices names a device that does not exist. It is served when it appears.",
		"correct --devices, or create the device").ofNode()
	DeviceUnsuitable = register("DeviceUnsuitable", Error,
		"--devices names a device that exists but cannot be served: the loopback device, or one whose packets begin neither with an Ethernet header nor with an IP header (GRE, PPP).",
		"remove it from --devices").ofNode()
	NoDeviceWithClients = register("NoDeviceWithClients", Error,
		"Services have backends for clients outside the cluster, but no device that can be served has a default route or an address of the Node.",
		"set --devices to the devices that lead to clients")
	DeviceLosesPackets = register("DeviceLosesPackets", Error,
		"By its own counters, a driver lost packets that XDP sent in the last ten minutes. The peer of a veth device accepts them only with GRO or an XDP program.",
		"serve the device with tc: --edge-mode=tc, or auto").ofNode()
	DevicesUnreadable = register("DevicesUnreadable", Error,
		"The devices of this node, or their attached programs, cannot be read from the kernel. The devices known so far are served.",
		"see the reason in the message; the agent retries")
	EdgeDropsToBackend = register("EdgeDropsToBackend", Error,
		"In the last minute, the edge dropped packets of clients on their way to a backend on another node: the node has no route to it or none that the edge can send by, the route's device has no address to send from, or no SNAT port is free. `beeline status` reads the counters when it is asked, so that the first lost packet is there; the log has the condition within two seconds. A packet that waits for its neighbour, or that a later hop drops, is not counted. The condition ends when that is there again, or after a minute without such packets. "+
			"What is dropped elsewhere is not seen here: a backend that is dead behind a working route gets its share of clients, as with kube-proxy, unless a health check finds out (docs/operate/health.md). Connections of this node's programs that fail at it are counted (docs/operate/debug.md#connections-at-sockets).",
		"see the reason in the message: `ip route get ADDRESS` shows the route; restore it, give the device an address, or widen --snat-ports").ofNode()
	EdgeDropsToClients = register("EdgeDropsToClients", Warning,
		"In the last minute, the edge dropped replies of backends, or could not refuse packets of clients, because the node has no route to these clients, or one of type blackhole, unreachable or prohibit. Health checks of this node are no clients. The condition ends a minute after the last such packet. Clients are not named: anybody may forge a source.",
		"`beeline monitor --reason drop_no_route` shows clients, `ip route get ADDRESS` the route: restore it, or the default route").ofNode()
	EdgeBypassesFilter = register("EdgeBypassesFilter", Warning,
		"Packet filters of this node would drop, reject, queue or redirect packets that the edge forwards for Services, and the packets do not meet them: the edge sends them past. They are served. There is one condition for each place, which quotes the first rules.",
		"remove the rule; or do what it does where the packets arrive, such as by loadBalancerSourceRanges of the Service, or on the hosts of clients and backends (docs/operate/firewalls.md)").ofNode()
	EdgeWithheldByXFRM = register("EdgeWithheldByXFRM", Info,
		"XFRM policies (IPsec) of this node concern packets that the edge would send or accept in clear. Clients and backends that they match are not served by the edge. None of their packets was dropped in the last ten minutes; otherwise the condition is EdgeDropsByXFRM.",
		"nothing if these clients and backends need no Services from outside; else use an overlay that encrypts by itself (WireGuard), an xfrm interface, whose policies have an if_id, or delete the policies").ofNode()
	EdgeDropsByXFRM = register("EdgeDropsByXFRM", Warning,
		"Packets for Services were dropped in the last ten minutes (drop_xfrm), because XFRM policies (IPsec) of this node concern them, and the edge would send or accept them in clear. Clients and backends that the policies match are not served by the edge, also by connections that existed when the policy came.",
		"use an overlay that encrypts by itself (WireGuard), an xfrm interface, whose policies have an if_id, or delete the policies; nothing if these clients and backends are not to be served").ofNode()
	EdgeXFRMUnknown = register("EdgeXFRMUnknown", Warning,
		"The XFRM policies (IPsec) of this node cannot be read, or not be given to the programs. The edge goes by those known last.",
		"see the reason in the message; the agent reads them again when they change").ofNode()
	EdgeRouteUnusable = register("EdgeRouteUnusable", Warning,
		"The node has routes that add something to packets which the edge's programs cannot add: MPLS labels, a segment list (SRv6), or an outer header by a route of another table than main. Where such a route leads to a backend or client, packets of Services are dropped (drop_no_route).",
		"route to these networks by a tunnel device (ip link add ... type vxlan, ipip, wireguard) without `encap`; a route with `encap ip` or `encap ip6` is served in table main, if all of its next hops are by one device; or set --edge-mode=off where another proxy serves clients").ofNode()
	RouteMTUsMissing = register("RouteMTUsMissing", Warning,
		"More routes of this node have an MTU of their own than there is room for in the programs' table. The smallest of them counts for all routes: packets of Services that are longer get an ICMP error, or are fragmented, and packets between pods that are longer take the stack.",
		"set the MTU at the device, where routes by it have one MTU, or at fewer routes, such as at the default route").ofNode()
	EdgeBypassesRules = register("EdgeBypassesRules", Info,
		"Routing rules select packets by a mark, which rules of nftables and iptables set, or by the key of a tunnel. Packets that the edge forwards for Services meet no such rules, and are routed as if they had neither. Packets between pods that have a mark take the stack.",
		"nothing if the marks are for other packets, as those of network plugins and VPNs are; else select by addresses, ports or the device (ip rule from, to, dport, iif)").ofNode()
	EdgeRoutingUnknown = register("EdgeRoutingUnknown", Warning,
		"The routes or routing rules of this node cannot be read, or not be given to the programs. The edge goes by those known last.",
		"see the reason in the message; the agent reads them again when they change").ofNode()
	OtherProxy = register("OtherProxy", Warning,
		"kube-proxy, or what it has left, has rules for Services on this node, too. They translate what Beeline leaves to the stack, and go on with endpoints that are gone once nobody updates them.",
		"during a migration nothing; otherwise stop kube-proxy on this node, and remove its rules (kube-proxy --cleanup)").ofNode()
	EdgeFiltersUnknown = register("EdgeFiltersUnknown", Warning,
		"The packet filters of this node cannot be read. Some may drop packets that the edge forwards past them.",
		"see the reason in the message; the agent retries").ofNode()
	PodShortcutFailed = register("PodShortcutFailed", Warning,
		"The pod shortcut could not follow a change of this node's devices, routes or neighbours. Packets of new pods take the stack; the others are as before.",
		"see the reason in the message; the agent retries").ofNode()
	PodDeviceMissing = register("PodDeviceMissing", Error,
		"--pod-devices names a device that does not exist, or that leads to no pod. The packets of the pods that are meant take the stack.",
		"correct --pod-devices; auto stands for all devices of pods").ofNode()
	PodNetworksMissed = register("PodNetworksMissed", Warning,
		"Devices of pods lead to addresses that are in none of the pod networks. Packets of these pods take the stack, and count as of clients outside the cluster.",
		"set --pod-networks to the networks of all pods of the cluster, or correct the podCIDRs of the Nodes").ofNode()
	PodShortcutWithheld = register("PodShortcutWithheld", Info,
		"The pods behind a device do not take the pod shortcut, because it would bypass packet filters, XFRM policies, a queue or another BPF program. Their packets take the stack, where these have their effect.",
		"nothing; or remove what the message names (rules of iptables-legacy: write them with iptables-nft, whose rules are read); or, if it may be without effect on packets between pods, set --pod-ignore-filters").ofNode()
	PodPassesInvalid = register("PodPassesInvalid", Info,
		"A rule drops packets that conntrack finds invalid (`ct state invalid`), and pods that it concerns are on the pod shortcut, which follows no sequence numbers. TCP segments outside the window, and those of no connection, reach the pod, whose own TCP discards them; so do packets with a wrong checksum.",
		"nothing, if the pods' own TCP may decide; otherwise set --pod-devices=off on these nodes").ofNode()
	PodShortcutUnsearched = register("PodShortcutUnsearched", Warning,
		"The agent has not completed a search for packet filters for longer than --pod-filter-age. Packets between pods take the stack, where rules have their effect, until a search completes.",
		"see PodShortcutFailed, if it is there, for the reason; if searches take long, because of many rules, raise --pod-filter-age").ofNode()
	PodAddressLimit = register("PodAddressLimit", Warning,
		"A bridge has learned more addresses in the pod networks behind one device than a pod has. Packets of those that came last take the stack. A pod with CAP_NET_RAW can have its node learn addresses that are not its own.",
		"find the pod behind the device, and why it answers for so many addresses").ofNode()
	MeshPodFailed = register("MeshPodFailed", Warning,
		"With --mesh-cgroups or --mesh-pods: connections of a pod do not go to its proxy, in one direction or both.",
		"see the reason in the message; the agent retries every second")
	MeshProxyMissing = register("MeshProxyMissing", Warning,
		"No proxy listens at --mesh-inbound-port or --mesh-outbound-port in a pod of --mesh-cgroups or --mesh-pods. Connections from other hosts to the pod, or those of its applications, are refused.",
		"start the proxy in the pod, or correct --mesh-inbound-port and --mesh-outbound-port; exclude a direction that has no proxy")
	MeshProxyUnknown = register("MeshProxyUnknown", Error,
		"With --mesh-cgroups or --mesh-pods: nothing tells the proxy of a pod from its applications. It runs as root or as the user of an application, with no group of its own, and the cgroup of its container is not known (yet). What would go to the proxy is refused, so that nothing bypasses it.",
		"run the proxy as a user or with a primary group of its own (runAsUser, runAsGroup); with --mesh-pods the kubelet's report of its container is enough, which comes when it has started")
	MeshProxyOther = register("MeshProxyOther", Error,
		"A process at the proxy's port for connections of applications is not the proxy that the flags or the pod's spec describe. Its own connections are taken for those of an application, would come back to it, and are refused.",
		"start the proxy with the user or group that the message names, or correct --mesh-proxy-uid and --mesh-proxy-gid, or the container's runAsUser and runAsGroup")
	MeshProxyLoops = register("MeshProxyLoops", Error,
		"In the last two minutes, connections of a process that acts as the proxy of a pod would have come back to it, because neither its user, nor its group, nor its cgroup tells it from applications. They were refused.",
		"start the proxy with the user or group that the message names, or correct --mesh-proxy-uid and --mesh-proxy-gid, or the container's runAsUser and runAsGroup")
	MeshRoutesUnclear = register("MeshRoutesUnclear", Warning,
		"Connections of a pod by some of its devices do not go to the proxy, and by which device a connection leaves is not told by its destination and source alone, or could not be found out. The connections that the message names go to the proxy, or are taken for others to the same destination.",
		"route by destination or source address; or exclude networks (--mesh-exclude-outbound-networks, traffic.sidecar.istio.io/excludeOutboundIPRanges) instead of devices")
	MeshAnnotationUnsupported = register("MeshAnnotationUnsupported", Warning,
		"A pod has devices behind which virtual machines are (traffic.sidecar.istio.io/kubevirtInterfaces, istio.io/reroute-virtual-interfaces, --mesh-reroute-interfaces), and this kernel has no tcx, which Linux 6.6 brought. What the machines send does not go to the proxy.",
		"use Linux 6.6 or later; or remove the annotation if the pod does not need it, or the label that selects the pod")
	MeshSockmapUnavailable = register("MeshSockmapUnavailable", Warning,
		"--mesh-sockmap is set, and this kernel cannot do it without breaking programs. Messages between applications and proxies take TCP.",
		"use a kernel without what the message names, or remove --mesh-sockmap").ofNode()
	MeshProgramSplices = register("MeshProgramSplices", Info,
		"With --mesh-sockmap: a program of a pod reads its connections between application and proxy by splice(2), which does not find messages past TCP. Its new connections take TCP. The agent logs a warning if the program began with it so late that a connection had to be aborted.",
		"nothing; or switch splice(2) off in the program, for example haproxy's option splice-auto, and restart the pod")
	MeshProgramsFull = register("MeshProgramsFull", Info,
		"With --mesh-sockmap: so many programs of a pod have read between application and proxy, each with a name of its own, that connections of further ones take TCP.",
		"nothing; or give processes of the pod the same name (/proc/PID/comm), and restart the pod")
	MeshHostStackIOUring = register("MeshHostStackIOUring", Warning,
		"With --mesh-hoststack: a program has the host stack's library and an io_uring(7). What it reads and writes by io_uring on a connection on rings misses the rings: bytes are lost or out of order.",
		"start the program without the library (LD_PRELOAD), or without io_uring; --mesh-hoststack=off keeps all programs from rings meanwhile")
	MeshHostStackUnread = register("MeshHostStackUnread", Warning,
		"With --mesh-hoststack: the page in which a program with the host stack's library keeps its connections could not be read, or is not what the library writes. Its connections are not listed or counted, and --mesh-hoststack=off may have no effect on it.",
		"see the reason in the message; if the library has another version than the agent, start the program again with the agent's, else do not trust the program")
	OffloadFailed = register("OffloadFailed", Warning,
		"Flow offload could not follow a change of this node's devices, routes or packet filters. Flows that it forwards are as before; others take the stack.",
		"see the reason in the message; the agent retries").ofNode()
	OffloadDeviceRefused = register("OffloadDeviceRefused", Warning,
		"The kernel's flowtable cannot have a device of flow offload. Flows by this device take the stack.",
		"do what the message says, or set --offload-provider=cache, or leave the device out of --offload-devices").ofNode()
	OffloadUnavailable = register("OffloadUnavailable", Warning,
		"Flow offload was asked for, and this kernel has nothing that it could use. All flows take the stack.",
		"do what the message says, or remove --offload-devices").ofNode()
	OffloadLegacyRules = register("OffloadLegacyRules", Warning,
		"Flow offload was asked for, and iptables-legacy has rules, which flow offload does not read. All flows of their family take the stack.",
		"write the rules with iptables-nft (update-alternatives --set iptables /usr/sbin/iptables-nft; the same for ip6tables), whose rules flow offload reads, and remove those of iptables-legacy; or, if they may be without effect on offloaded flows, set --offload-ignore-filters").ofNode()
	OffloadFull = register("OffloadFull", Warning,
		"The flow cache had no room for flows: they take the stack. A flow without packets for a second gives up its place.",
		"raise --offload-max-flows (an entry for each direction of a flow), or leave traffic out by --offload-networks and --offload-ports").ofNode()
	OffloadDeviceMissing = register("OffloadDeviceMissing", Error,
		"--offload-devices names a device that does not exist, or that flows cannot enter and leave by. Flow offload takes it when it can.",
		"correct --offload-devices, or create the device").ofNode()
	OffloadDeviceAlone = register("OffloadDeviceAlone", Warning,
		"Flow offload has one device alone. Flows that enter by it and leave by another, or the reverse, stay on the stack.",
		"name the other devices of the flows in --offload-devices, or set it to auto; if auto finds one device alone, the node has nothing to offload: set it to off").ofNode()
	DeviceTableNotWritten = register("DeviceTableNotWritten", Error,
		"The node's source addresses of a device could not be written to the tables. New flows through that device may fail.",
		"see the reason in the message; the agent retries").ofNode()
	DetachFailed = register("DetachFailed", Warning,
		"Programs could not be detached from a device that is no longer served.",
		"see the reason in the message; the agent retries").ofNode()
	ForwardingOff = register("ForwardingOff", Error,
		"The kernel does not forward packets of one address family. Clients outside the cluster reach no backend except the node itself. A node that is itself a backend of Services with DSR, and has none of their pods, needs no forwarding for them: there it is a condition only once a client's packet was dropped for that, for ten minutes.",
		"set the sysctl that the message names, or start the agent with --set-sysctls")
	SysctlNotSet = register("SysctlNotSet", Error,
		"--set-sysctls is given, but the kernel rejects a setting.",
		"let the agent write to /proc/sys/net, or set the sysctl on the node")
	ConntrackGCFailed = register("ConntrackGCFailed", Warning,
		"Garbage collection of the conntrack table failed. Expired entries occupy it longer than they should.",
		"see the reason in the message; the agent retries")
	FlowsNearlyFull = register("FlowsNearlyFull", Warning,
		"The conntrack table is more than 90 percent full, closed connections not counted. Where there is no room, entries of half-closed connections are evicted, then those of the Service that has most, and their connections may break.",
		"raise --max-flows")
	SNATPortsExhausted = register("SNATPortsExhausted", Error,
		"New flows to backends on other nodes found no free SNAT port in the last ten minutes, and were dropped.",
		"set --snat-ports to wider ranges, or give the Service more backends")
	KernelFlowsUnknown = register("KernelFlowsUnknown", Warning,
		"The edge cannot look up flows in the kernel's conntrack. An answer to a pod that is masqueraded from the number of a NodePort or HostPort goes to that port's backend, which may be another tenant's pod.",
		"use Linux 5.18 or later with BTF, and the module nf_conntrack: load it and restart the agent; or masquerade from ports that no Service has: `--to-ports` (docs/operate/tune.md)")
	AutobindMeetsService = register("AutobindMeetsService", Warning,
		"The kernel may choose the number of a NodePort or HostPort of UDP for a socket of this node, and nothing on this node uses conntrack. Answers to such a socket go to the Service or Pod, unless the socket is connected. Clients of the Service are served all the same.",
		"reserve the ports by the line that the message names, and write it to a file in /etc/sysctl.d; a rule of netfilter that uses conntrack has the same effect")
	CountersUnreadable = register("CountersUnreadable", Warning,
		"The attached programs are from another version and count different reasons. Their counters are not shown.",
		"start this version's agent, or use that version's command")
)
