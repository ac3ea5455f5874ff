// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/report/condition"
)

const (
	programs   = "../../build/monitoring"
	prometheus = "../../deploy/prometheus"
)

// rules are the alert rules in the format of Prometheus.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `json:"alert"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// ruleTests are the tests of promtool.
type ruleTests struct {
	Tests []struct {
		Alerts []struct {
			Alert    string `json:"alertname"`
			Expected []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// promtool accepts the rules and their tests. Each alert fires in one, and names a section of the documentation that
// exists.
func TestAlerts(t *testing.T) {
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(prometheus, "alerts.yaml"))
	promtool(t, "test", "rules", filepath.Join(prometheus, "alerts_test.yaml"))
	var all rules
	var tests ruleTests
	read(t, "alerts.yaml", &all)
	read(t, "alerts_test.yaml", &tests)
	fires := map[string]bool{}
	for _, test := range tests.Tests {
		for _, a := range test.Alerts {
			fires[a.Alert] = fires[a.Alert] || len(a.Expected) > 0
		}
	}
	alerts := 0
	for _, group := range all.Groups {
		for _, rule := range group.Rules {
			alerts++
			if !fires[rule.Alert] {
				t.Errorf("alert %s fires in no test: add one to alerts_test.yaml", rule.Alert)
			}
			for _, target := range runbooks(rule.Annotations["runbook"]) {
				if err := findSection(target); err != "" {
					t.Errorf("alert %s: runbook %q: %s", rule.Alert, target, err)
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("alerts.yaml has no rules")
	}
}

// runbooks returns a runbook for each code of a condition, if it depends on that.
func runbooks(text string) (all []string) {
	const code = "{{ $labels.code | toLower }}"
	if !strings.Contains(text, code) {
		return []string{text}
	}
	for _, k := range condition.Kinds() {
		all = append(all, strings.ReplaceAll(text, code, strings.ToLower(string(k.Code))))
	}
	return all
}

// findSection returns what is wrong with PAGE#ANCHOR, relative to the checkout.
func findSection(target string) string {
	page, anchor, _ := strings.Cut(target, "#")
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		return err.Error()
	}
	if anchor == "" {
		return ""
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(string(text), -1) {
		plain := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		if strings.ReplaceAll(plain, " ", "-") == anchor {
			return ""
		}
	}
	return "there is no such heading"
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(prometheus, name))
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(program(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// program returns the path of a program of Prometheus.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(programs, name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run `make monitoring`", err)
	}
	return path
}
