// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// Packets of balancers are decapsulated if DSR is used or the flag says so. on and off are the values from a
// configuration file.
func TestAcceptsTunnels(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "--dsr=ipip": "--dsr=ipip", "--dsr-balancers=192.0.2.7/32": "--dsr-balancers", "--dsr-accept": "--dsr-accept=true",
		"--dsr=ipip --dsr-balancers=192.0.2.7/32 --dsr-accept=false": "",
		"--dsr-accept=on": "--dsr-accept=true", "--dsr=ipip --dsr-accept=off": "",
		"--dsr=ipip --dsr-accept=auto": "--dsr=ipip", "--edge-mode=off": "",
	} {
		var c config
		fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		c.addFlags(fs)
		if err := fs.Parse(strings.Fields("--snat-ports=2000-2999 " + args)); err != nil {
			t.Fatal(err)
		}
		var services service.Config
		if err := c.complete(&services); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		if got := c.acceptsTunnels(); got != want {
			t.Errorf("%s: packets of balancers are decapsulated because of %q, want %q", args, got, want)
		}
		o := c.datapathOptions()
		if services.Edge != (o != nil) || services.Edge == strings.Contains(args, "mode=off") {
			t.Errorf("%s: Services expect an edge: %t, the datapath has one: %t", args, services.Edge, o != nil)
		}
		if never := strings.Contains(args, "accept=false") || strings.Contains(args, "accept=off"); never && o.AcceptDSR {
			t.Errorf("%s: the programs can decapsulate packets", args)
		}
		if o != nil && !slices.Equal(o.SNATPorts, []bpf.PortRange{{First: 2000, Last: 2999}}) {
			t.Errorf("%s: the programs have the SNAT ports %v", args, o.SNATPorts)
		}
	}
}
