// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"beeline.io/beeline/bench/stat"
)

// WriteJSON writes the comparison as JSON.
func (c *Comparison) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	return encoder.Encode(c)
}

// WriteText writes the comparison for people.
func (c *Comparison) WriteText(w io.Writer) error {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	say("old  %s, %s, %s", c.Old.Program, c.Old.Started, c.Old.Machine)
	say("new  %s, %s, %s", c.New.Program, c.New.Started, c.New.Machine)
	for _, warning := range c.Warnings {
		say("WARNING: %s", warning)
	}
	say(`
Medians, and new by old with 95 %% intervals (Hodges-Lehmann, Mann-Whitney: rounds of two runs do not
belong to each other). "By" another side of the same run: the ratio to that side within the rounds, old and
new, and new by old of these; it decides where it is there, for what slows a whole run slows both sides.
"better" and "worse" are at most by one twentieth chance; what has neither need not be the same. "?": too few
samples for 95 %%. What differs from run to run with nothing changed is in no interval: look at what was not changed.`)
	part := ""
	for _, r := range c.Rows {
		if r.Part != part {
			part = r.Part
			say("\n== %s", part)
		}
		name, _ := strings.CutPrefix(r.Series.String(), part+", ")
		say("%-84s %-24s %10s -> %-10s %-4s %-24s %s", name, r.Name, figure(r.Old), figure(r.New), unit(r.Unit), ratio(r.Ratio), mark(r.Verdict))
		if r.Relative != nil {
			say("%-84s %-24s %10.3f -> %-10.3f %-4s %s", "", "  by "+r.Relative.Against, r.Relative.Old.Median, r.Relative.New.Median, "", ratio(&r.Relative.Ratio))
		}
	}
	say("\n%d rows: %d better, %d worse.", len(c.Rows), c.Better, c.Worse)
	if c.Noisy {
		say("A run was noisy: rows may be called better or worse for what others did. Measure again when nothing else runs.")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// figure has four significant digits.
func figure(x float64) string {
	switch {
	case x >= 1000 || x <= -1000:
		return fmt.Sprintf("%.0f", x)
	case x >= 100 || x <= -100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func unit(name string) string {
	if name == "1" {
		return ""
	}
	return name
}

func ratio(s *stat.Shift) string {
	if s == nil {
		return "no ratio"
	}
	return s.Interval.String()
}

func mark(v Verdict) string {
	if v == Unclear {
		return ""
	}
	return string(v)
}
