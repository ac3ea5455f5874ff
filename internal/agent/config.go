// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/csv"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/tables/maglev"
	"beeline.io/beeline/internal/tables/reconcile"
)

// Config is the agent's configuration. Flags and keys of the configuration file have the same names.
type Config struct {
	// Manifests is a path; empty with an API server. Kubeconfig locates the API server; empty for that of
	// the cluster in which the agent runs.
	Manifests  string
	Kubeconfig string
	NodeName   string
	BPFFS      string
	CgroupRoot string
	Socket     string
	Limits     bpf.Limits
	// Shares limit the fraction of each table that one object and one namespace may use; zero selects the
	// default.
	Shares reconcile.Shares
	// IgnoreAnnotations disables the beeline.io/... annotations of Services, EndpointSlices and Pods.
	IgnoreAnnotations bool
	AuditInterval     time.Duration
	// HealthzAddress, ProbeAddress and MetricsAddress are those of the HTTP endpoints, IP:PORT; empty for none.
	HealthzAddress string
	ProbeAddress   string
	MetricsAddress string
	// SelfProbe enables the self-probe.
	SelfProbe bool
	// MetricsMaxSeries is the maximum number of series of each metric.
	MetricsMaxSeries uint32
	LogLevel         string
	// Logged is the level of the logger that Run gets; nil if it cannot change.
	Logged    *slog.LevelVar
	LogFormat string

	Service service.Config
	// Components are the parts with programs, tables and flags. If empty, AddFlags sets those of the product.
	Components component.List

	// Profiling serves Go's profiles at MetricsAddress.
	Profiling bool

	flags             *pflag.FlagSet // after Complete
	file              string
	nodePortAddresses []string
	algorithm         string
}

// AddFlags defines the flags and their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname()
	c.Service = service.DefaultConfig()
	if len(c.Components) == 0 {
		c.Components = Components()
	}
	c.Components.AddFlags(fs)
	l := bpf.DefaultLimits
	fs.StringVar(&c.file, "config", "", "configuration file in YAML; its keys are the names of these flags, or nested at their hyphens, such as \"offload: {devices: [eth0]}\"; flags take precedence")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig file of the API server to read Services from (default: the service account of the agent's pod)")
	fs.StringVar(&c.Manifests, "manifests", "", "file or directory of Kubernetes manifests to read Services from instead of an API server; watched for changes")
	fs.StringVar(&c.NodeName, "node-name", strings.ToLower(host), "name of this node's Node object")
	fs.Lookup("node-name").DefValue = "the host name"
	fs.StringVar(&c.BPFFS, "pins", api.DefaultBPFFS, "directory on a BPF file system for pinned programs, tables and links, which keep serving while no agent is running; mounted if necessary")
	fs.StringVar(&c.CgroupRoot, "cgroup-root", "", "cgroup v2 directory whose processes get the socket shortcut (default: the root, mounted at "+bpf.OwnCgroup+" if necessary)")
	fs.StringVar(&c.Socket, "agent-socket", api.DefaultSocket, "unix socket on which the agent answers the other commands")
	for _, limit := range bpf.AllLimits {
		fs.Uint32Var(limit.In(&c.Limits), limit.Flag, *limit.In(&l), limit.Usage)
		if limit.DefaultText != "" {
			fs.Lookup(limit.Flag).DefValue = limit.DefaultText
		}
	}
	fs.Uint32Var(&c.Shares.Service, "service-share", 0, fmt.Sprintf("percentage of each table that one Service may use, 1 to 100 (default: %d with an API server, 100 with --manifests)", defaultShares.Service))
	fs.Uint32Var(&c.Shares.Namespace, "namespace-share", 0, fmt.Sprintf("percentage of each table that all Services of one namespace may use, 1 to 100 (default: %d with an API server, 100 with --manifests)", defaultShares.Namespace))
	fs.BoolVar(&c.IgnoreAnnotations, "ignore-annotations", false, "ignore annotations beeline.io/... of Services, EndpointSlices and Pods; otherwise anyone with write access to these objects can use much of the tables, and opt pods out of the socket shortcut")
	fs.StringVar(&c.algorithm, "algorithm", string(service.Random), "how to choose backends for Services without the annotation "+service.AnnotationAlgorithm+": random, or maglev (the same backend for a flow on every node, and few changes when backends are added or removed)")
	fs.Uint32Var(&c.Service.TableSize, "maglev-table-size", maglev.DefaultSize, "slots of each Maglev table: a prime number, at least 100 times the number of endpoints of a Service")
	fs.DurationVar(&c.AuditInterval, "audit-interval", time.Minute, "interval at which the tables are compared with the expected state and repaired; 0 for never")
	fs.StringVar(&c.Service.ServiceProxyName, "service-proxy-name", "", "also serve Services with this value of the label service.kubernetes.io/service-proxy-name")
	fs.StringSliceVar(&c.nodePortAddresses, "nodeport-addresses", nil, "networks of this node's addresses that serve NodePorts, and keywords: primary (the node's primary address of each family, the default), localhost (only loopback), all")
	fs.BoolVar(&c.Service.LocalhostNodePorts, "localhost-nodeports", c.Service.LocalhostNodePorts, "serve NodePorts on 127.0.0.1 and ::1 to processes in the node's own network namespace")
	fs.BoolVar(&c.Service.MasqueradeAll, "masquerade-all", false, "send what pods send to Service addresses with this node's address as source to backends on other nodes; pods' packets are then translated one by one at the edge instead of once at the socket")
	fs.BoolVar(&c.Service.RefuseForeignExternalIPs, "refuse-foreign-external-ips", false, "ignore external IPs for pods and the node, and for all clients if one is an address of a Node or of the API server; otherwise anyone who may create a Service can intercept traffic to any address")
	fs.BoolVar(&c.Service.RefuseOutsideClusterIP, "refuse-outside-cluster-ips", false, "reject clients outside the cluster at ClusterIPs; otherwise clients with a route to this node reach them, as with kube-proxy")
	fs.StringVar(&c.HealthzAddress, "healthz-bind-address", DefaultHealthzAddress, "IP:PORT at which /healthz and /livez are served; \"\" for none")
	fs.StringVar(&c.ProbeAddress, "probe-bind-address", "", "IP:PORT at which /healthz and /livez are served, too, for probes of the kubelet: where kube-proxy runs, it answers at the port of --healthz-bind-address; \"\" for none")
	fs.BoolVar(&c.SelfProbe, "self-probe", false, "connect once a second to a Service of the agent itself, through the tables and the socket hooks; /healthz answers 503 while that fails. Off by default: the agent has to run below --cgroup-root, and its connections count in \"beeline status\"")
	fs.StringVar(&c.MetricsAddress, "metrics-bind-address", DefaultMetricsAddress, "IP:PORT at which /metrics, /statusz, /flagz, /configz and /proxyMode are served; \"\" for none")
	fs.BoolVar(&c.Profiling, "profiling", false, "serve profiles of the agent at /debug/pprof of --metrics-bind-address, and set the log level at /debug/flags/v; anyone who reaches that address can use them")
	fs.Uint32Var(&c.MetricsMaxSeries, "metrics-max-series", metrics.DefaultMaxSeries, "maximum number of series of each metric in /metrics, such as those of Services; the others are counted in beeline_metrics_dropped_series")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "text", "text or json")
}

// Complete reads the configuration file, if one is given, and validates the configuration.
func (c *Config) Complete(fs *pflag.FlagSet) error {
	if c.file != "" {
		if err := readConfigFile(c.file, fs); err != nil {
			return err
		}
	}
	c.flags = fs
	c.Service.NodeName, c.Service.Algorithm = c.NodeName, service.Algorithm(c.algorithm)
	c.Service.LocalByAddress, c.Service.Manifests = c.Manifests != "", c.Manifests != ""
	if err := c.Components.Complete(&c.Service); err != nil {
		return err
	}
	if err := c.completeShares(); err != nil {
		return err
	}
	if err := c.completeNodePortAddresses(); err != nil {
		return err
	}
	switch {
	case c.Manifests != "" && c.Kubeconfig != "":
		return errors.New("--manifests and --kubeconfig: Services are read from one of them; remove the other")
	case c.Manifests == "" && c.Kubeconfig == "" && !kube.InCluster():
		return errors.New("no source of Services: give --kubeconfig for an API server, or --manifests with a file or directory; " +
			"in a pod with a service account neither is needed")
	case c.NodeName == "":
		return errors.New("--node-name is empty")
	case !slices.Contains(service.Algorithms, c.algorithm):
		return fmt.Errorf("--algorithm %q: one of %s", c.algorithm, strings.Join(service.Algorithms, ", "))
	case c.AuditInterval < 0:
		return errors.New("--audit-interval is negative: give 0 to turn the audit off")
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel):
		return fmt.Errorf("--log-level %q: debug, info, warn or error", c.LogLevel)
	case !slices.Contains([]string{"text", "json"}, c.LogFormat):
		return fmt.Errorf("--log-format %q: text or json", c.LogFormat)
	}
	if err := errors.Join(checkAddress("healthz-bind-address", c.HealthzAddress), checkAddress("probe-bind-address", c.ProbeAddress), checkAddress("metrics-bind-address", c.MetricsAddress)); err != nil {
		return err
	}
	if err := maglev.CheckSize(c.Service.TableSize); err != nil {
		return fmt.Errorf("--maglev-table-size: %w", err)
	}
	return c.Limits.Check()
}

// nodePortNetworks are the networks of the keywords of --nodeport-addresses.
var nodePortNetworks = map[string][]netip.Prefix{
	"primary":   nil,
	"localhost": {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	"all":       {netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
}

// completeNodePortAddresses reads --nodeport-addresses, a list of networks and keywords like kube-proxy's.
func (c *Config) completeNodePortAddresses() error {
	seen := map[string]bool{}
	for _, text := range c.nodePortAddresses {
		text = strings.TrimSpace(text)
		networks, keyword := nodePortNetworks[text]
		switch {
		case keyword && seen[text]:
			return fmt.Errorf("--nodeport-addresses has %s twice", text)
		case text == "localhost" && !c.Service.LocalhostNodePorts:
			return errors.New("--nodeport-addresses=localhost contradicts --localhost-nodeports=false: remove one of them")
		case !keyword:
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("--nodeport-addresses: %q is neither a network such as 192.0.2.0/24, nor primary, localhost or all", text)
			}
			networks = []netip.Prefix{p.Masked()}
		}
		seen[text] = true
		c.Service.PrimaryNodePorts = c.Service.PrimaryNodePorts || text == "primary"
		c.Service.NodePortAddresses = append(c.Service.NodePortAddresses, networks...)
	}
	return nil
}

// PlainValue replaces pflag's error about an invalid value, which is in the words of Go's functions, with one that says
// what is wrong with the value.
func PlainValue(err error) error {
	if err == nil {
		return nil
	}
	number, list := (*strconv.NumError)(nil), (*csv.ParseError)(nil)
	before, duration, isDuration := strings.Cut(err.Error(), ": time: ")
	switch {
	case errors.As(err, &number):
		want := "not a number"
		switch {
		case number.Func == "ParseBool":
			want = "neither true nor false"
		case errors.Is(number, strconv.ErrRange):
			want = "too large"
		case strings.HasPrefix(number.Num, "-"):
			want = "negative"
		}
		return errors.New(strings.Replace(err.Error(), number.Error(), want, 1))
	case errors.As(err, &list):
		return errors.New(strings.Replace(err.Error(), list.Error(), "not a list of values with commas between them", 1))
	case isDuration && strings.HasPrefix(duration, "missing unit"):
		return fmt.Errorf("%s: a duration needs a unit: write it as in 500ms, 30s or 5m", before)
	case isDuration:
		return fmt.Errorf("%s: not a duration such as 500ms, 30s or 5m", before)
	}
	return err
}

// FlagNames lists the flags of a set, except hidden ones (former names).
func FlagNames(fs *pflag.FlagSet) (names []string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}
