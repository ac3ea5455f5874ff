// SPDX-License-Identifier: Apache-2.0

// Package metricstest compares what is counted with the metrics that show it.
package metricstest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/metrics"
)

// moved is what each number is set to, and so the value of the series that shows it; times are as many seconds.
const moved = 7

// EachMovesOne changes each number, time and truth value of a struct alone, and fails the test unless the series move
// that want names for it, to the same value: one, if a metric shows it, and none for "". counts points to the struct;
// read adds the metrics of it. Fields of structs within are named with a dot; want has all.
func EachMovesOne(t *testing.T, counts any, read func(*metrics.Batch), want map[string]string) {
	t.Helper()
	before := series(read)
	seen := map[string]bool{}
	eachNumber("", reflect.ValueOf(counts).Elem(), func(name string, v reflect.Value) {
		seen[name] = true
		wanted, known := want[name]
		if !known {
			t.Errorf("%s is counted, and the test does not say which metric shows it", name)
			return
		}
		value := change(v)
		after := series(read)
		v.SetZero()
		var changed []string
		for s, n := range after {
			if n == before[s] {
				continue
			}
			changed = append(changed, s)
			if n != value {
				t.Errorf("the counter %s is %v, and its metric %s is %v", name, value, s, n)
			}
		}
		slices.Sort(changed)
		if got := strings.Join(changed, " "); got != wanted {
			t.Errorf("the counter %s, changed alone, moves the metrics %q, want %q", name, got, wanted)
		}
	})
	for name := range want {
		if !seen[name] {
			t.Errorf("nothing counts %s", name)
		}
	}
}

// series returns the values of all series by name and labels.
func series(read func(*metrics.Batch)) map[string]float64 {
	b := metrics.NewBatch()
	read(b)
	all := map[string]float64{}
	for _, m := range b.Metrics {
		all[Name(m)] = m.Value
	}
	return all
}

// Name returns the name of a series, with its labels in order: name{label=value,...}.
func Name(m api.Metric) string {
	if len(m.Labels) == 0 {
		return m.Name
	}
	var labels []string
	for _, l := range slices.Sorted(maps.Keys(m.Labels)) {
		labels = append(labels, fmt.Sprintf("%s=%s", l, m.Labels[l]))
	}
	return m.Name + "{" + strings.Join(labels, ",") + "}"
}

var timeType, durationType = reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration]()

// eachNumber calls f with each field that change can set.
func eachNumber(prefix string, v reflect.Value, f func(string, reflect.Value)) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		switch {
		case !field.IsExported() || !value.CanSet():
		case value.CanInt(), value.CanUint(), value.Kind() == reflect.Bool, value.Type() == timeType:
			f(prefix+field.Name, value)
		case value.Kind() == reflect.Struct:
			eachNumber(prefix+field.Name+".", value, f)
		}
	}
}

// change sets a field, and returns the value that a metric of it has.
func change(v reflect.Value) float64 {
	switch {
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(time.Unix(moved, 0)))
	case v.Type() == durationType:
		v.SetInt(int64(moved * time.Second))
	case v.CanInt():
		v.SetInt(moved)
	case v.CanUint():
		v.SetUint(moved)
	default:
		v.SetBool(true)
		return 1
	}
	return moved
}
