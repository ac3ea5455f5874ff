// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/maglev"
	"beeline.io/beeline/internal/nearest"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source/kube"
	"beeline.io/beeline/internal/sync"
	"beeline.io/beeline/internal/terminate"
)

// Where an agent lives unless it is told otherwise.
const (
	DefaultBPFFS  = "/sys/fs/bpf/beeline"
	DefaultSocket = "/run/beeline/agent.sock"
)

// Config is all that an agent can be told. The flags and the keys of the
// configuration file have the same names.
type Config struct {
	// Manifests is a path; empty for the API server. Kubeconfig says where that
	// is; empty for the one of the cluster that the agent runs in.
	Manifests  string
	Kubeconfig string
	NodeName   string
	BPFFS      string
	CgroupRoot string
	PodCgroups []string
	Socket     string
	Limits     datapath.Limits
	// Shares are what of the tables one object and one namespace may take; zero takes the default.
	Shares sync.Shares
	// IgnoreAnnotations: annotations beeline.io/... of Services, EndpointSlices and Pods have no effect.
	IgnoreAnnotations bool
	AuditInterval     time.Duration
	// BindProtection is datapath.Options.BindProtection.
	BindProtection bool
	Terminate      string        // terminate.Method
	TCPDrain       time.Duration // 0: TCP connections outlive their backend
	Edge           edge.Config
	SNATPorts      []datapath.PortRange
	LogLevel       string
	LogFormat      string

	Service service.Config

	file              string
	nodePortAddresses []string
	edgeMode          string
	snatPorts         []string
	noEdge            string // why there is none although it was asked for
	icmpRate          uint32
	dispatcher        bool // datapath.EdgeOptions.Dispatcher
	podNetworks       []string
	dsr               string
	dsrBalancers      []string
	dsrAccept         string
	algorithm         string
}

// AddFlags defines the flags with their defaults.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname()
	c.Service = service.DefaultConfig()
	l := datapath.DefaultLimits
	fs.StringVar(&c.file, "config", "", "file of settings in YAML; its keys are the names of these flags, which win over it")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server to take Services from (default: as the service account of the pod that the agent runs in)")
	fs.StringVar(&c.Manifests, "manifests", "", "file or folder of Kubernetes manifests to take Services from, followed as it changes, in place of an API server")
	fs.StringVar(&c.NodeName, "node-name", strings.ToLower(host), "name of this node's Node object")
	fs.StringVar(&c.BPFFS, "bpffs", DefaultBPFFS, "directory on a BPF file system that keeps programs, tables and links while no agent is running; mounted if need be")
	fs.StringVar(&c.CgroupRoot, "cgroup-root", "", "cgroup v2 directory whose processes get the socket shortcut (default: the root, mounted at "+datapath.OwnCgroup+" if need be)")
	fs.StringSliceVar(&c.PodCgroups, "pod-cgroups", nil, "directories to search for the kubelet's cgroup directory (kubepods.slice or kubepods), or that directory itself (default: all cgroup hierarchies)")
	fs.StringVar(&c.Socket, "socket", DefaultSocket, "unix socket on which the agent answers the other commands")
	fs.Uint32Var(&c.Limits.Frontends, "max-frontends", l.Frontends, "addresses and ports of Services that fit into the tables")
	fs.Uint32Var(&c.Limits.Backends, "max-backends", l.Backends, "distinct endpoints that fit into the tables")
	fs.Uint32Var(&c.Limits.Slots, "max-slots", l.Slots, "members of all backend sets together, by weight, that fit into the tables")
	fs.Uint32Var(&c.Limits.Services, "max-services", l.Services, "service ports that fit into the tables")
	fs.Uint32Var(&c.Limits.SourceRanges, "max-source-ranges", l.SourceRanges, "loadBalancerSourceRanges that fit into the tables")
	fs.Uint32Var(&c.Limits.Affinity, "max-affinity", l.Affinity, "clients that session affinity remembers; those that came once make room")
	fs.Uint32Var(&c.Limits.Flows, "max-flows", l.Flows, "records of clients' flows, two for each flow; the longest unused make room (default: by the machine's memory)")
	fs.Uint32Var(&c.Shares.Service, "service-share", 0, fmt.Sprintf("percent of each table that one Service may take, 1 to 100 (default: %d with an API server, 100 with --manifests)", defaultShares.Service))
	fs.Uint32Var(&c.Shares.Namespace, "namespace-share", 0, fmt.Sprintf("percent of each table that all Services of one namespace may take, 1 to 100 (default: %d with an API server, 100 with --manifests)", defaultShares.Namespace))
	fs.BoolVar(&c.IgnoreAnnotations, "ignore-annotations", false, "annotations beeline.io/... of Services, EndpointSlices and Pods have no effect: whoever may write these objects could else take much of the tables, and have pods leave the socket shortcut")
	c.addEdgeFlags(fs)
	c.addDSRFlags(fs)
	fs.StringVar(&c.algorithm, "algorithm", string(service.Random), "how backends are chosen for Services without the annotation "+service.AnnotationAlgorithm+": random, or maglev (the same backend for a flow on every node, and few other choices when backends come and go)")
	fs.Uint32Var(&c.Service.TableSize, "maglev-table-size", maglev.DefaultSize, "slots of each Maglev table, a prime number: at least 100 times as many as a Service has endpoints")
	fs.DurationVar(&c.AuditInterval, "audit-interval", time.Minute, "how often the tables are compared with what they should hold; 0 for never")
	fs.StringVar(&c.Terminate, "terminate-sockets", string(terminate.Auto), "how connected UDP sockets end whose backend is gone, in all pods and on the node: "+strings.Join(terminate.Methods, ", "))
	fs.DurationVar(&c.TCPDrain, "tcp-drain-timeout", 0, "reset TCP connections whose backend has not served for so long; 0 for never")
	fs.StringVar(&c.Service.ServiceProxyName, "service-proxy-name", "", "take Services with this value of the label service.kubernetes.io/service-proxy-name, too")
	fs.StringSliceVar(&c.nodePortAddresses, "nodeport-addresses", nil, "networks whose addresses of this node serve NodePorts (default: the node's primary address of each family)")
	fs.BoolVar(&c.Service.LocalhostNodePorts, "localhost-nodeports", c.Service.LocalhostNodePorts, "serve NodePorts on 127.0.0.1 and ::1 to processes in the node's own network namespace")
	fs.BoolVar(&c.Service.RefuseForeignExternalIPs, "refuse-foreign-external-ips", false, "ignore external IPs for pods and the node, and for everybody where one is an address of a Node or of the API server: whoever may create a Service could else intercept what is sent to any address")
	fs.BoolVar(&c.Service.RefuseOutsideClusterIP, "refuse-outside-cluster-ips", false, "refuse clients outside of the cluster at ClusterIPs: with a route to this node they reach them else, as with kube-proxy")
	fs.BoolVar(&c.BindProtection, "bind-protection", true, "refuse bind() of a served NodePort or HostPort in the node's own network namespace: the program would wait for connections that never come")
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "text", "text or json")
}

// Complete reads the configuration file, if one was named, and checks
// everything.
func (c *Config) Complete(fs *pflag.FlagSet) error {
	if c.file != "" {
		if err := readConfigFile(c.file, fs); err != nil {
			return err
		}
	}
	if err := c.completeEdge(); err != nil {
		return err
	}
	if err := c.completeDSR(); err != nil {
		return err
	}
	c.Service.NodeName, c.Service.Algorithm = c.NodeName, service.Algorithm(c.algorithm)
	c.Service.KeepTCP = c.TCPDrain > 0
	c.Service.LocalByAddress, c.Service.Manifests = c.Manifests != "", c.Manifests != ""
	if err := c.completeShares(); err != nil {
		return err
	}
	for _, text := range c.nodePortAddresses {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return fmt.Errorf("--nodeport-addresses: %q is not a network such as 192.0.2.0/24", text)
		}
		c.Service.NodePortAddresses = append(c.Service.NodePortAddresses, p.Masked())
	}
	switch {
	case c.Manifests != "" && c.Kubeconfig != "":
		return errors.New("--manifests and --kubeconfig: Services come from one of them, not from both; remove one")
	case c.Manifests == "" && c.Kubeconfig == "" && !kube.InCluster():
		return errors.New("no source of Services: give --kubeconfig with the way to an API server, or --manifests with a file or folder; " +
			"in a pod with a service account neither is needed")
	case c.NodeName == "":
		return errors.New("--node-name is empty")
	case slices.ContainsFunc(c.PodCgroups, func(path string) bool { return !filepath.IsAbs(path) }):
		return fmt.Errorf("--pod-cgroups %q: not absolute paths", c.PodCgroups)
	case !slices.Contains(service.Algorithms, c.algorithm):
		return fmt.Errorf("--algorithm %q: one of %s", c.algorithm, strings.Join(service.Algorithms, ", "))
	case c.AuditInterval < 0:
		return errors.New("--audit-interval is negative: 0 turns the comparison off")
	case !slices.Contains(terminate.Methods, c.Terminate):
		return fmt.Errorf("--terminate-sockets %q: one of %s", c.Terminate, strings.Join(terminate.Methods, ", "))
	case c.TCPDrain < 0:
		return errors.New("--tcp-drain-timeout is negative: 0 leaves TCP connections alone")
	case c.TCPDrain > 0 && c.Terminate == string(terminate.Off):
		return errors.New("--tcp-drain-timeout needs another --terminate-sockets than off")
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel):
		return fmt.Errorf("--log-level %q: debug, info, warn or error", c.LogLevel)
	case !slices.Contains([]string{"text", "json"}, c.LogFormat):
		return fmt.Errorf("--log-format %q: text or json", c.LogFormat)
	}
	if err := maglev.CheckSize(c.Service.TableSize); err != nil {
		return fmt.Errorf("--maglev-table-size: %w", err)
	}
	return c.Limits.Check()
}

// readConfigFile sets the flags that the command line did not.
func readConfigFile(path string, fs *pflag.FlagSet) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	settings := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	var errs []error
	for key, value := range settings {
		flag := fs.Lookup(key)
		if flag == nil || key == "config" || key == "help" {
			errs = append(errs, fmt.Errorf("--config %s: no setting is called %q%s", path, key, nearest.Question(key, FlagNames(fs))))
			continue
		}
		if flag.Changed {
			continue
		}
		if b, ok := value.(bool); ok && flag.Value.Type() == "string" {
			value = map[bool]string{false: "off", true: "on"}[b] // YAML takes these words for booleans
		}
		if err := fs.Set(key, settingText(value)); err != nil {
			errs = append(errs, fmt.Errorf("--config %s: %s: %w", path, key, PlainValue(err)))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func settingText(value any) string {
	switch v := value.(type) {
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			parts[i] = settingText(p)
		}
		return strings.Join(parts, ",")
	case float64:
		if v == float64(int64(v)) {
			return fmt.Sprint(int64(v))
		}
	case nil:
		return ""
	}
	return fmt.Sprint(value)
}

// PlainValue says of a flag's value that is no number, or none of its kind, what may be
// there, where pflag names a function of Go.
func PlainValue(err error) error {
	number := (*strconv.NumError)(nil)
	if !errors.As(err, &number) {
		return err
	}
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
}

// FlagNames lists the flags of a set.
func FlagNames(fs *pflag.FlagSet) (names []string) {
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}
