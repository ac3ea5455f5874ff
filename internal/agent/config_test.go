// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Services come from one source, and it is said how to name one.
func TestSourceOfServices(t *testing.T) {
	for _, test := range []struct {
		name, args, inCluster, want string
	}{
		{"none", "", "", "no source of Services: give --kubeconfig"},
		{"both", "--manifests /m --kubeconfig /k", "", "--manifests and --kubeconfig: Services come from one of them"},
		{"manifests", "--manifests /m", "", ""},
		{"kubeconfig", "--kubeconfig /k", "", ""},
		{"in a pod", "", "192.0.2.1", ""},
		{"manifests in a pod", "--manifests /m", "192.0.2.1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", test.inCluster)
			t.Setenv("KUBERNETES_SERVICE_PORT", "443")
			var c Config
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			c.AddFlags(fs)
			if err := fs.Parse(append(strings.Fields(test.args), "--node-name", "n")); err != nil {
				t.Fatal(err)
			}
			err := c.Complete(fs)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
