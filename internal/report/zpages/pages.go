// SPDX-License-Identifier: Apache-2.0

package zpages

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Status is what /statusz tells of a component.
type Status struct {
	Component string
	Started   time.Time
	Version   string
	// Emulates is the version of Kubernetes whose behaviour the component has, as MAJOR.MINOR.
	Emulates string
	// Paths are the paths of other endpoints, without "/" at the end.
	Paths []string
}

// Statusz answers /statusz.
func Statusz(s Status) http.Handler {
	// As in Kubernetes, only the first element of a path is listed.
	folders := map[string]bool{}
	for _, path := range s.Paths {
		folders["/"+strings.SplitN(strings.TrimPrefix(path, "/"), "/", 2)[0]] = true
	}
	s.Paths = slices.Sorted(maps.Keys(folders))
	return &page{kind: "Statusz", component: s.Component, text: s.text, object: s.object}
}

func (s *Status) text() string {
	up, is := int64(time.Since(s.Started).Seconds()), separator()
	return fmt.Sprintf("\nStarted%[1]s %[2]s\nUp%[1]s %[3]d hr %02[4]d min %02[5]d sec\nGo version%[1]s %[6]s\nBinary version%[1]s %[7]s\nEmulation version%[1]s %[8]s\nPaths%[1]s %[9]s\n",
		is, s.Started.Format(time.UnixDate), up/3600, up/60%60, up%60, runtime.Version(), s.Version, s.Emulates, strings.Join(s.Paths, " "))
}

func (s *Status) object(meta typeMeta) any {
	return struct {
		typeMeta         `json:",inline"`
		StartTime        string   `json:"startTime"`
		UptimeSeconds    int64    `json:"uptimeSeconds"`
		GoVersion        string   `json:"goVersion"`
		BinaryVersion    string   `json:"binaryVersion"`
		EmulationVersion string   `json:"emulationVersion"`
		Paths            []string `json:"paths"`
	}{meta, s.Started.UTC().Format(time.RFC3339), int64(time.Since(s.Started).Seconds()), runtime.Version(), s.Version, s.Emulates, s.Paths}
}

// Flagz answers /flagz with the flags of a component and their values.
func Flagz(component string, flags map[string]string) http.Handler {
	text := func() string {
		var b strings.Builder
		is := separator()
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			b.WriteString(name + is + flags[name] + "\n")
		}
		return b.String()
	}
	object := func(meta typeMeta) any {
		return struct {
			typeMeta `json:",inline"`
			Flags    map[string]string `json:"flags,omitempty"`
		}{meta, flags}
	}
	return &page{kind: "Flagz", component: component, text: text, object: object}
}
