// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"net/url"
	"testing"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
)

// Each reason of the programs has a text, and there are no other texts.
func TestReasons(t *testing.T) {
	names, err := bpf.ReasonNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if api.Reasons[name] == "" {
			t.Errorf("%s has no text", name)
		}
	}
	if len(names) != len(api.Reasons) {
		t.Errorf("%d reasons, and texts for %d", len(names), len(api.Reasons))
	}
}

func TestFilter(t *testing.T) {
	flow := &api.Event{Reason: "new", Service: "default/web", Device: "eth0"}
	drop := &api.Event{Reason: "drop_policy", Service: "default/web", Device: "eth1"}
	for _, c := range []struct {
		filter     api.Filter
		flow, drop bool
	}{
		{api.Filter{}, true, true},
		{api.Filter{Drops: true}, false, true},
		{api.Filter{Service: "default/web"}, true, true},
		{api.Filter{Service: "default/other"}, false, false},
		{api.Filter{Device: "eth0"}, true, false},
		{api.Filter{Reason: "drop_policy"}, false, true},
		{api.Filter{Drops: true, Device: "eth0"}, false, false},
	} {
		v, err := url.ParseQuery(c.filter.Query())
		if err != nil || api.FilterFrom(v) != c.filter {
			t.Errorf("%+v is decoded as %+v (%v)", c.filter, api.FilterFrom(v), err)
		}
		if got := c.filter.Wants(flow); got != c.flow {
			t.Errorf("%+v wants a new flow: %v", c.filter, got)
		}
		if got := c.filter.Wants(drop); got != c.drop {
			t.Errorf("%+v wants a drop: %v", c.filter, got)
		}
	}
	for _, wrong := range []api.Filter{{Reason: "established"}, {Reason: "to_tc"}, {Reason: "drop"}, {Service: "a/b/web"}, {Service: "a/b/c"}} {
		if wrong.Check() == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
}
