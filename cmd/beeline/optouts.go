// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/util/printable"
)

// optOutWords name the object whose annotation applies.
var optOutWords = map[string]string{
	"pod": "its own annotation", "namespace": "that of its namespace", "runtimeClass": "that of its RuntimeClass",
}

func statusOptedOut(w io.Writer, s *api.Status) {
	if len(s.OptedOut.Pods) == 0 {
		return
	}
	fmt.Fprint(w, "\nPods that opted out of the socket shortcut")
	if c := s.SocketCounters; c != nil {
		fmt.Fprintf(w, " (calls passed unchanged so far: %d)", c.OptedOut)
	}
	fmt.Fprintln(w, ":")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range s.OptedOut.Pods {
		state := "in force"
		if !p.Found {
			state = "not found"
		}
		state += " for " + time.Since(p.Since).Round(time.Second).String()
		if p.Problem != "" {
			state += ": " + printable.Line(p.Problem)
		}
		fmt.Fprintf(t, "  %s/%s\tby %s\t%s\n", p.Namespace, p.Name, optOutWords[p.AnnotatedKind], state)
	}
	t.Flush()
}
