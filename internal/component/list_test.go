// SPDX-License-Identifier: Apache-2.0

package component

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// calls records which function of which component is called.
type calls []string

// component returns a component that records its calls.
func (c *calls) component(name string) *Component {
	note := func(what string) { *c = append(*c, name+" "+what) }
	return &Component{Name: name, New: func(Env) (*Instance, error) {
		return &Instance{
			Prepare: func(service.Delta) { note("prepare") },
			Apply:   func(service.Delta) { note("apply") },
			Start:   func() { note("start") },
			Repair:  func() []string { return []string{name} },
			Audit:   func() ([]string, error) { return []string{name}, errors.New("unreadable") },
			Close:   func() { note("close") },
		}, nil
	}}
}

// The agent calls the components in order, except that Prepare and Close start with the last. It skips
// functions that a component does not have.
func TestOrder(t *testing.T) {
	var got calls
	nothing := &Component{Name: "nothing", New: func(Env) (*Instance, error) { return &Instance{}, nil }}
	all, err := List{got.component("socket"), nothing, {Name: "unused"}, got.component("edge")}.New(Env{})
	if err != nil {
		t.Fatal(err)
	}
	all.Prepare(service.Delta{})
	all.Apply(service.Delta{})
	all.Start()
	all.Close()
	want := calls{"edge prepare", "socket prepare", "socket apply", "edge apply", "socket start", "edge start", "edge close", "socket close"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if repaired := all.Repair(); !slices.Equal(repaired, []string{"socket", "edge"}) {
		t.Errorf("repaired %v", repaired)
	}
}

// A failed audit does not prevent the others, and the error names the component.
func TestAuditGoesOn(t *testing.T) {
	var got calls
	all, err := List{got.component("socket"), got.component("edge")}.New(Env{})
	if err != nil {
		t.Fatal(err)
	}
	repaired, err := all.Audit()
	if !slices.Equal(repaired, []string{"socket", "edge"}) || err == nil ||
		!strings.Contains(err.Error(), "component socket: unreadable") || !strings.Contains(err.Error(), "component edge: unreadable") {
		t.Errorf("repaired %v, error %v", repaired, err)
	}
}

// If a component cannot start, those before it are closed, and the error names it.
func TestNewClosesTheOthers(t *testing.T) {
	var got calls
	broken := &Component{Name: "edge", New: func(Env) (*Instance, error) { return nil, errors.New("no room") }}
	_, err := List{got.component("socket"), broken}.New(Env{})
	if err == nil || err.Error() != "component edge: no room" || !slices.Equal(got, calls{"socket close"}) {
		t.Errorf("error %v, calls %v", err, got)
	}
}
