// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/tables/reconcile"
)

// Services come from one source; without one, the error says how to give one.
func TestSourceOfServices(t *testing.T) {
	for _, test := range []struct {
		name, args, inCluster, want string
	}{
		{"none", "", "", "no source of Services: give --kubeconfig"},
		{"both", "--manifests /m --kubeconfig /k", "", "--manifests and --kubeconfig: Services are read from one of them"},
		{"manifests", "--manifests /m", "", ""},
		{"kubeconfig", "--kubeconfig /k", "", ""},
		{"in a pod", "", "192.0.2.1", ""},
		{"manifests in a pod", "--manifests /m", "192.0.2.1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", test.inCluster)
			t.Setenv("KUBERNETES_SERVICE_PORT", "443")
			c := wantComplete(t, test.args, test.want)
			if files := strings.HasPrefix(test.name, "manifests"); test.want == "" && c.Service.LocalByAddress != files {
				t.Errorf("an endpoint without a node name is local by its address: %t, want %t (R11)", c.Service.LocalByAddress, files)
			}
		})
	}
}

// wantComplete expects a command line to be accepted, or an error with these words.
func wantComplete(t *testing.T, args, want string) (c Config) {
	t.Helper()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	c.AddFlags(fs)
	if err := fs.Parse(append(strings.Fields(args), "--node-name", "n")); err != nil {
		t.Fatal(err)
	}
	err := c.Complete(fs)
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("the flags %q are %s, want them %s", args, answered(err), answered(wanted(want)))
	}
	return c
}

// wanted is the error of a text that a test wants, nil if it wants none.
func wanted(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// answered is the result of reading a configuration in the words of a failed test.
func answered(err error) string {
	if err == nil {
		return "accepted"
	}
	return fmt.Sprintf("refused with %q", err)
}

// configFile returns the path of a file for --config.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Errors about a value of the wrong type are the same for the command line and the file.
func TestValuesOfTheWrongKind(t *testing.T) {
	for setting, want := range map[string]string{
		"max-flows=99999999999":  "too large",
		"icmp-rate=4294967296":   "too large",
		"max-slots=-1":           "negative",
		"max-slots=many":         "not a number",
		"bind-protection=maybe":  "neither true nor false",
		"audit-interval=forever": "not a duration such as 500ms, 30s or 5m",
		"audit-interval=5":       "a duration needs a unit: write it as in 500ms, 30s or 5m",
	} {
		name, value, _ := strings.Cut(setting, "=")
		fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		new(Config).AddFlags(fs)
		path := configFile(t, name+": "+value+"\n")
		for _, err := range []error{PlainValue(fs.Parse([]string{"--" + setting})), readConfigFile(path, fs)} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "strconv") {
				t.Errorf("%s: %v, want %q", setting, err, want)
			}
		}
	}
}

// The edge's flags are validated before anything is attached.
func TestEdgeFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--edge-mode=auto":                          "",
		"--edge-mode=off --snat-ports=30000-40000":  "",
		"--edge-mode=fast":                          "--edge-mode \"fast\": one of auto, xdp, tc, off",
		"--edge-mode=tc --edge-xdp-generic":         "--edge-xdp-generic has no effect with --edge-mode=tc",
		"--edge-mode=off --set-sysctls":             "--set-sysctls has no effect with --edge-mode=off",
		"--devices=eth[":                            "not a name or shell pattern",
		"--conntrack-udp-timeout-stream=0s":         "--conntrack-udp-timeout-stream 0s: at least 1s",
		"--conntrack-udp-timeout-stream=-1h":        "--conntrack-udp-timeout-stream -1h0m0s: at least 1s",
		"--conntrack-tcp-timeout-established=1ns":   "--conntrack-tcp-timeout-established 1ns: at least 1s, such as",
		"--conntrack-tcp-timeout-established=999ms": "the age of flows is known in seconds",
		"--conntrack-tcp-timeout-established=1s":    "",
		"--conntrack-udp-timeout-stream=1s":         "",
		"--pod-networks=0.0.0.0/0":                  "--pod-networks 0.0.0.0/0: clients outside the cluster would count as pods",
		"--pod-networks=0.0.0.0/1,128.0.0.0/1":      "give only the networks of pod addresses, such as 10.244.0.0/16",
		"--pod-networks=10.0.0.0/8,::/0":            "--pod-networks ::/0: clients",
		"--pod-networks=::ffff:0.0.0.0/96":          "--pod-networks 0.0.0.0/0: clients",
		"--pod-networks=2000::/3":                   "(a prefix of /7 or longer)",
		"--pod-networks=10.0.0.0/8,fd00::/8":        "",
		"--pod-networks=fc00::/7":                   "",
		"--pod-networks=10.244.0.0":                 "is not a network such as 10.244.0.0/16",
		"--snat-ports=30000-30001":                  "--snat-ports: 30000-30001 overlaps the NodePorts 30000-32767",
		"--snat-ports=many":                         "--snat-ports many: \"many\" is not a range of ports",
		"--max-flows=0":                             "--max-flows 0: between 64 and",
		"--max-flows=1":                             "with fewer entries flows evict each other",
		"--max-flows=4":                             "--max-flows 4: between 64 and",
		"--max-flows=63":                            "--max-flows 63: between 64 and",
		"--max-flows=64":                            "",
		"--max-flows=67108865":                      "--max-flows 67108865: between 64 and 67108864",
		"--max-slots=0":                             "--max-slots 0: between 1 and",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
	c := wantComplete(t, "--manifests /m --pod-networks=10.244.3.0/16", "")
	if len(c.Service.PodNetworks) != 1 || c.Service.PodNetworks[0].String() != "10.244.0.0/16" {
		t.Errorf("networks %v", c.Service.PodNetworks)
	}
}

// --nodeport-addresses takes networks and keywords in any combination.
func TestNodePortAddresses(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "[] false",
		"--nodeport-addresses=primary":    "[] true",
		"--nodeport-addresses=localhost":  "[127.0.0.0/8 ::1/128] false",
		"--nodeport-addresses=all":        "[0.0.0.0/0 ::/0] false",
		"--nodeport-addresses=10.1.2.3/8": "[10.0.0.0/8] false",
		"--nodeport-addresses=localhost,primary --nodeport-addresses=10.0.0.0/8": "[127.0.0.0/8 ::1/128 10.0.0.0/8] true",
	} {
		c := wantComplete(t, "--manifests /m "+args, "").Service
		if got := fmt.Sprint(c.NodePortAddresses, c.PrimaryNodePorts); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	for args, want := range map[string]string{
		"--nodeport-addresses=Primary":                                  "\"Primary\" is neither a network such as 192.0.2.0/24, nor primary, localhost or all",
		"--nodeport-addresses=primary,all,primary":                      "--nodeport-addresses has primary twice",
		"--nodeport-addresses=localhost --localhost-nodeports=false":    "contradicts --localhost-nodeports=false",
		"--nodeport-addresses=127.0.0.1 --localhost-nodeports=false":    "is neither a network",
		"--nodeport-addresses=127.0.0.1/32 --localhost-nodeports=false": "",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
}

// TestShares: the default shares of one object and one namespace depend on the source.
func TestShares(t *testing.T) {
	for args, want := range map[string]reconcile.Shares{
		"--kubeconfig /k":                                           {Service: 25, Namespace: 50},
		"--manifests /m":                                            {Service: 100, Namespace: 100},
		"--manifests /m --service-share=30":                         {Service: 30, Namespace: 100},
		"--kubeconfig /k --service-share=60":                        {Service: 60, Namespace: 60},
		"--kubeconfig /k --namespace-share=10":                      {Service: 10, Namespace: 10},
		"--kubeconfig /k --service-share=100 --namespace-share=100": {Service: 100, Namespace: 100},
		"--kubeconfig /k --service-share=1 --namespace-share=2":     {Service: 1, Namespace: 2},
	} {
		if got := wantComplete(t, args, "").Shares; got != want {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
	wantComplete(t, "--manifests /m --service-share=101", "give a percentage of each table from 1 to 100")
	wantComplete(t, "--manifests /m --service-share=30 --namespace-share=20", "--service-share is more than --namespace-share")
}

// Settings may be nested at the hyphens of their names; errors name the place.
func TestNestedSettings(t *testing.T) {
	path := configFile(t, "offload:\n  devices: [eth0, eth1.7]\n  exclude:\n    networks: [192.0.2.0/24]\n  max-flows: 128\nedge: {mode: off}\nmax:\n  flows: 65\ndsr: off\n")
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	new(Config).AddFlags(fs)
	if err := fs.Parse([]string{"--max-flows=64"}); err != nil {
		t.Fatal(err)
	}
	if err := readConfigFile(path, fs); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"offload-devices": "[eth0,eth1.7]", "offload-exclude-networks": "[192.0.2.0/24]", "offload-max-flows": "128", "edge-mode": "off", "max-flows": "64", "dsr": "off",
	} {
		if got := fs.Lookup(name).Value.String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for text, want := range map[string]string{
		"offload:\n  device: eth0\n":                         "unknown setting \"offload.device\", did you mean \"devices\"?",
		"offload:\n  threshold: many\n":                      "offload.threshold: invalid argument",
		"offload:\n  threshold: {packets: 2}\n":              "offload.threshold: give a value or a list, not a map",
		"offload: eth0\n":                                    "unknown setting \"offload\"",
		"offloads: {devices: eth0}\n":                        "unknown setting \"offloads\"",
		"offload:\n":                                         "",
		"offload-devices: eth0\noffload: {devices: eth1}\n":  ":2: offload.devices and offload-devices (line 1) are the same setting: remove one of them",
		"offload: {exclude-ports: 1, exclude: {ports: 2}}\n": "offload.exclude.ports and offload.exclude-ports (line 1) are the same setting",
		"dsr: {hybrid: true}\n":                              "",
		"config: {x: 1}\n":                                   "unknown setting \"config\"",
		"offload:\n  devices: eth0\n  devices: eth1\n":       ":3: offload.devices: given twice, first on line 2; remove one of the two",
		"offload: {networks: [192.0.2.0/24, 10.0.0.0/8]}\n":  "",
		// File, line, key, and what to change; not the words of Go.
		"# a\ndsr: off\nmax-flow: 5\n":                        ":3: unknown setting \"max-flow\", did you mean \"max-flows\"?",
		"max-flows: 5\n dsr: off\n":                           ":2: not YAML: mapping values are not allowed in this context (is the line indented too far",
		"max-flows:\t5\n\tdsr: off\n":                         ":2: not YAML: ",
		"hello\n":                                             ":1: want settings as in \"max-flows: 100000\", have the string \"hello\"",
		"- max-flows: 5\n":                                    ":1: want settings as in \"max-flows: 100000\", have a list",
		"max-flows: 5\n---\nmax-flows: 6\n":                   ":3: a second document begins here",
		"max-flows: 5\nmax-flows: 6\n":                        ":2: max-flows: given twice, first on line 1; remove one of the two",
		"devices: [[eth0]]\n":                                 ":1: devices: give a value or a list of values, not a list",
		"devices: [{a: b}]\n":                                 ":1: devices: give a value or a list of values, not a list",
		"audit-interval: 5\n":                                 ":1: audit-interval: invalid argument \"5\" for \"--audit-interval\" flag: a duration needs a unit",
		"nonsense: 5\n":                                       ":1: unknown setting \"nonsense\": `beeline agent --help` lists them",
		"bind-protection: no\nedge-mode: off\ndsr: \"off\"\n": "",
		"a: &d [eth0]\ndevices: *d\n":                         ":1: unknown setting \"a\"",
	} {
		fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		new(Config).AddFlags(fs)
		err := readConfigFile(configFile(t, text), fs)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the configuration file %q is %s, want it %s", text, answered(err), answered(wanted(want)))
		}
		if err != nil && regexp.MustCompile(`(?i)json|unmarshal|struct|interface|strconv|time: `).MatchString(err.Error()) {
			t.Errorf("%q: in the words of Go: %v", text, err)
		}
	}
}

// The offload flags are validated, and those without effect refused.
// The group mesh of the configuration file.
func TestMeshInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "beeline.yaml")
	text := "mesh:\n  pods: security.istio.io/tlsMode\n  exclude-outbound-ports: [22, 25]\n  dns-port: 15053\n  sockmap: true\n  hoststack: off\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	mesh.New().AddFlags(fs)
	if err := readConfigFile(path, fs); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"mesh-pods": "security.istio.io/tlsMode", "mesh-exclude-outbound-ports": "[22,25]", "mesh-dns-port": "15053", "mesh-sockmap": "true", "mesh-hoststack": "off"} {
		if got := fs.Lookup(flag).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", flag, got, want)
		}
	}
}

func TestOffloadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--offload-devices=auto":                           "",
		"--offload-devices=eth*,wan --offload-threshold=1": "",
		"--offload-devices=auto,eth0":                      "--offload-devices \"auto\": give auto, off, or names and shell patterns",
		"--offload-devices=eth[":                           "--offload-devices \"eth[\"",
		"--offload-devices=":                               "--offload-devices is empty",
		"--offload-devices=auto --offload-threshold=0":     "--offload-threshold 0: at least 1",
		"--offload-threshold=5":                            "--offload-threshold has no effect with --offload-devices=off",
		"--offload-ports=80":                               "--offload-ports has no effect with --offload-devices=off",
		"--offload-ignore-filters":                         "--offload-ignore-filters has no effect",
		"--offload-max-flows=128":                          "--offload-max-flows has no effect with --offload-devices=off",
		"--offload-devices=auto --offload-max-flows=128":   "",
		"--offload-devices=auto --offload-provider=flowtable --offload-max-flows=128":                                        "--offload-max-flows has no effect with --offload-provider=flowtable",
		"--offload-devices=auto --offload-networks=10.0.0.0":                                                                 "--offload-networks: \"10.0.0.0\" is not a network such as 192.0.2.0/24",
		"--offload-devices=auto --offload-exclude-networks=::/129":                                                           "--offload-exclude-networks: \"::/129\" is not a network",
		"--offload-devices=auto --offload-ports=90-80":                                                                       "--offload-ports: \"90-80\" is neither a port nor a range",
		"--offload-devices=auto --offload-exclude-ports=0":                                                                   "--offload-exclude-ports: \"0\" is neither",
		"--offload-devices=auto --offload-exclude-ports=1,70000":                                                             "--offload-exclude-ports: \"70000\" is neither",
		"--offload-devices=auto --offload-protocols=tcp,icmp":                                                                "--offload-protocols: \"icmp\" is neither tcp nor udp",
		"--offload-devices=auto --offload-protocols=TCP --offload-ports=80,8000-8999 --offload-networks=10.0.0.0/8,fd00::/8": "",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
}

// "off" is a boolean in YAML, and keeps its meaning.
func TestOffInTheFile(t *testing.T) {
	for _, text := range []string{"edge-mode: off\n", "dsr: off\n", "dsr: 'off'\n", "terminate-sockets: off\n", "dsr-hybrid: off\n"} {
		wantComplete(t, "--manifests /m --config "+configFile(t, text), "")
	}
}

// The DSR method and the accepted balancers can be set on the command line and in the file.
func TestDSRFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--dsr=off --edge-mode=off":                  "",
		"--dsr=opt --dsr-hybrid":                     "",
		"--dsr=vxlan":                                "--dsr \"vxlan\": one of off, ipip, geneve, opt",
		"--dsr=ipip --edge-mode=off":                 "--dsr=ipip has no effect with --edge-mode=off",
		"--dsr-hybrid --edge-mode=off":               "--dsr-hybrid has no effect with --edge-mode=off",
		"--dsr-balancers=10.0.0.0/8 --edge-mode=off": "--dsr-balancers has no effect with --edge-mode=off",
		"--dsr-accept=maybe":                         "--dsr-accept \"maybe\": one of auto, true, false",
		"--dsr-accept=true --edge-mode=off":          "--dsr-accept=true has no effect with --edge-mode=off",
		"--dsr-accept=false --edge-mode=off":         "",
		"--dsr-balancers=192.0.2.7":                  "\"192.0.2.7\" is not a network such as 192.0.2.0/24, or 192.0.2.7/32 for one balancer",
		"--dsr-balancers=192.0.2.7/33":               "is not a network",
		"--dsr-balancers=0.0.0.0/0":                  "--dsr-balancers 0.0.0.0/0: hosts there can send packets to backends of this node with any client's address",
		"--dsr-balancers=10.0.0.0/8,2000::/3":        "(a prefix of /7 or longer)",
		"--dsr-balancers=::ffff:0.0.0.0/96":          "--dsr-balancers 0.0.0.0/0",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
	for text, want := range map[string]string{
		"dsr-accept: true\nedge-mode: off\n":  "--dsr-accept=true has no effect with --edge-mode=off",
		"dsr-accept: false\nedge-mode: off\n": "",
	} {
		wantComplete(t, "--manifests /m --config "+configFile(t, text), want)
	}
	path := configFile(t, "dsr: geneve\ndsr-hybrid: true\ndsr-balancers: [192.0.2.9/24, '2001:db8::/64']\n")
	c := wantComplete(t, "--manifests /m --config "+path, "").Service
	if c.DSR != service.DSRGeneve || !c.DSRHybrid || fmt.Sprint(c.Balancers) != "[192.0.2.0/24 2001:db8::/64]" {
		t.Errorf("from the file: %s, hybrid %t, balancers %v", c.DSR, c.DSRHybrid, c.Balancers)
	}
	if c := wantComplete(t, "--manifests /m --dsr=ipip --dsr-hybrid=false --config "+path, "").Service; c.DSR != service.DSRIPIP || c.DSRHybrid {
		t.Errorf("the command line does not take precedence: %s, hybrid %t", c.DSR, c.DSRHybrid)
	}
}

// The algorithm must exist, and Maglev tables must have a prime number of slots.
func TestAlgorithmFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                   "",
		"--algorithm=maglev": "",
		"--algorithm=maglev --maglev-table-size=65537": "",
		"--algorithm=source-hash":                      "--algorithm \"source-hash\": one of random, maglev",
		"--maglev-table-size=16384":                    "--maglev-table-size: 16384 slots: not a prime number; the nearest are 16381 and 16411",
		"--maglev-table-size=7":                        "choose a prime number from 251 to 1048573",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
}

// What a flag asks for is done, or refused: statistics of backends are part of those of Services.
func TestSocketStatsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--socket-stats-per-backend":                      "",
		"--socket-stats=false":                            "",
		"--socket-stats=false --socket-stats-per-backend": "--socket-stats-per-backend has no effect with --socket-stats=false: remove one of them",
	} {
		wantComplete(t, "--manifests /m "+args, want)
	}
}
