// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"log/slog"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
)

// What the kernel lacks for the shortcut is in the status and a condition; the agent runs without it. Without the flag
// nothing is missing.
func TestKernelLacksTheShortcut(t *testing.T) {
	const lacks = "packets between pods take the stack: the kernel lacks something"
	for _, test := range []struct {
		devices []string
		want    string
	}{{[]string{component.Auto}, lacks}, {[]string{"cali*"}, lacks}, {[]string{component.Off}, ""}} {
		instance, err := (&config{devices: test.devices}).run(component.Env{Datapath: &bpf.Datapath{Unavailable: map[string]string{ComponentName: lacks}}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var status api.Status
		line, message := "", ""
		if instance.Status != nil {
			instance.Status(&status)
			line = status.Pods.Line()
		}
		if instance.Conditions != nil {
			for _, c := range instance.Conditions() {
				if c.Code == condition.PodShortcutFailed.Code {
					message += c.Message
				}
			}
		}
		if line != test.want || message != test.want {
			t.Errorf("%v: the status says %q, the condition %q; want %q", test.devices, line, message, test.want)
		}
	}
}
