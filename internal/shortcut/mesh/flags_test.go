// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/cluster/service"
)

// TestFlags: what could have no effect, or another than meant, is refused with the flag's name.
func TestFlags(t *testing.T) {
	for flags, refused := range map[string]string{
		"": "",
		"--mesh-cgroups=/a,/b --mesh-exclude-outbound-ports=80,443 --mesh-exclude-outbound-networks=10.0.0.0/8,fd00::/8 --mesh-sockmap": "",
		"--mesh-cgroups=a": "--mesh-cgroups",
		"--mesh-cgroups=/a --mesh-outbound-port=15006":                          "--mesh-outbound-port",
		"--mesh-cgroups=/a --mesh-inbound-port=0":                               "--mesh-inbound-port",
		"--mesh-cgroups=/a --mesh-exclude-outbound-ports=http":                  "--mesh-exclude-outbound-ports",
		"--mesh-cgroups=/a --mesh-exclude-inbound-ports=0":                      "--mesh-exclude-inbound-ports",
		"--mesh-cgroups=/a --mesh-exclude-outbound-networks=10.0.0.1":           "--mesh-exclude-outbound-networks",
		"--mesh-cgroups=/a --mesh-exclude-outbound-networks=::ffff:10.0.0.0/96": "--mesh-exclude-outbound-networks",
		"--mesh-cgroups=/a --mesh-exclude-interfaces=net1,vnet+":                "",
		"--mesh-cgroups=/a --mesh-exclude-interfaces=net1,a/b":                  "--mesh-exclude-interfaces",
		"--mesh-cgroups=/a --mesh-reroute-interfaces=vm0":                       "",
		"--mesh-cgroups=/a --mesh-reroute-interfaces=a-name-of-16-chr":          "--mesh-reroute-interfaces",
		"--mesh-reroute-interfaces=vm0":                                         "without --mesh-cgroups",
		"--mesh-exclude-interfaces=net1":                                        "without --mesh-cgroups",
		"--mesh-exclude-inbound-ports=80":                                       "without --mesh-cgroups",
		"--mesh-sockmap":                                                        "without --mesh-cgroups",
		"--mesh-pods=app=web --mesh-dns-port=15053":                             "",
		"--mesh-cgroups=/a --mesh-dns-port=15053 --mesh-dns-capture-all":        "",
		"--mesh-cgroups=/a --mesh-dns-capture-all":                              "without --mesh-dns-port",
		"--mesh-pods=app=,,":                                                    "--mesh-pods",
		"--mesh-cgroups=/a --mesh-dns-port=15001":                               "--mesh-dns-port",
		"--mesh-dns-port=15053":                                                 "without --mesh-cgroups",
		"--mesh-cgroups=/a --mesh-hoststack=off":                                "",
		"--mesh-cgroups=/a --mesh-hoststack=false":                              "ignore, on or off",
		"--mesh-cgroups=/a --mesh-hoststack=":                                   "ignore, on or off",
		"--mesh-hoststack=on":                                                   "without --mesh-cgroups",
		"--mesh-hoststack=ignore":                                               "",
	} {
		c, fs := &config{}, pflag.NewFlagSet("", pflag.ContinueOnError)
		c.addFlags(fs)
		err := fs.Parse(strings.Fields(flags))
		if err == nil {
			err = c.complete(&service.Config{})
		}
		if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: %v, want an error with %q", flags, err, refused)
		}
	}
}
