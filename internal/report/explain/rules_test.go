// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"os"
	"strings"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
)

// Every rule that an answer can name has its sentence, and docs/operate/semantics.md has a row for it.
func TestRulesHaveText(t *testing.T) {
	named := map[string]bool{}
	add := func(rules []string) {
		for _, rule := range rules {
			named[rule] = true
		}
	}
	for _, reason := range []string{"", "drop_no_service", "drop_source"} {
		add(rulesOf(nil, service.FromOutside, api.Decision{}, reason))
		for _, kind := range []service.FrontendKind{service.ClusterIP, service.ClusterIPOtherPorts, service.NodePort, service.LoadBalancer, service.ExternalIP, service.HostPort, service.Echo} {
			for _, class := range []service.SourceClass{service.FromPod, service.FromNode, service.FromOutside} {
				for _, set := range []bool{false, true} {
					f := &api.Frontend{Kind: kind, Restricted: set, AffinitySeconds: 1}
					f.FromOutside.Masquerade = set
					add(rulesOf(f, class, api.Decision{Verdict: service.Balance.String(), Masquerade: set}, reason))
				}
			}
		}
	}
	page, err := os.ReadFile("../../../docs/operate/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	for rule := range named {
		if Rules[rule] == "" || !strings.Contains(string(page), "\n| "+rule+" |") {
			t.Errorf("%s: the sentence %q, or no row in semantics.md", rule, Rules[rule])
		}
	}
	if len(named) != len(Rules) {
		t.Errorf("%d rules have a sentence, and answers name %d", len(Rules), len(named))
	}
}
