// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each kind has its own code, a known severity, a meaning and a remedy, and the program reports it somewhere,
// as docs/operate/conditions.md says.
func TestKinds(t *testing.T) {
	used := reported(t)
	seen := map[Code]bool{}
	for _, k := range Kinds() {
		switch {
		case seen[k.Code]:
			t.Errorf("%s is registered twice", k.Code)
		case k.Severity.rank() < 0:
			t.Errorf("%s: severity %q", k.Code, k.Severity)
		case !strings.HasSuffix(k.Meaning, ".") || k.Remedy == "" || strings.HasSuffix(k.Remedy, "."):
			t.Errorf("%s: the meaning must be sentences, and the remedy a clause: %q, %q", k.Code, k.Meaning, k.Remedy)
		case !used[string(k.Code)]:
			t.Errorf("%s is reported nowhere", k.Code)
		}
		seen[k.Code] = true
	}
}

// The log has each condition at the level of its severity, with its code.
func TestLogLevels(t *testing.T) {
	levels := map[Severity]string{Error: "ERROR", Warning: "WARN", Info: "INFO"}
	for _, k := range Kinds() {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		k.New("words").At("an object").Log(log, "a part")
		k.Log(log, "other words", "device", "eth0")
		for i, line := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
			rest := []string{`msg="a part: words" code=` + string(k.Code) + ` object="an object" remedy=`, `msg="other words" device=eth0 code=` + string(k.Code)}[i]
			if !strings.Contains(line, " level="+levels[k.Severity]+" "+rest) {
				t.Errorf("%s, %s, is logged as\n%s\nwant level %s and %s", k.Code, k.Severity, line, levels[k.Severity], rest)
			}
		}
	}
}

// What is reported as a condition is logged by Condition.Log or Kind.Log: no other call of a logger has parts of one.
func TestConditionsLogThemselves(t *testing.T) {
	other := regexp.MustCompile(`(?m)^.*[lL]og\.(Debug|Info|Warn|Error)\([^\n]*(\.Remedy|(\.Problem|\bc)\.(Message|Text\(\)|String\(\))|string\(c\.Code\)).*$`)
	eachSource(t, func(path string, text []byte) {
		for _, line := range other.FindAll(text, -1) {
			t.Errorf("%s logs a condition itself:%s", path, line)
		}
	})
}

// reported returns the names of the kinds that other packages use. A variable has the name of its code.
func reported(t *testing.T) map[string]bool {
	used := map[string]bool{}
	use := regexp.MustCompile(`condition\.([A-Z]\w*)`)
	eachSource(t, func(_ string, text []byte) {
		for _, m := range use.FindAllSubmatch(text, -1) {
			used[string(m[1])] = true
		}
	})
	return used
}

// eachSource calls do with each file of package internal that is no test.
func eachSource(t *testing.T, do func(path string, text []byte)) {
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		do(path, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The worst come first, then registration order decides; duplicates are removed.
func TestSort(t *testing.T) {
	note, warning, first, second := SourceNote.New("n"), PortHeld.New("w"), NotSynced.New("a"), AddressTaken.New("b")
	got := List{note, second, warning, second.At("x"), first, second}.Sort()
	if want := (List{first, second, second.At("x"), warning, note}); !slices.Equal(got, want) {
		t.Errorf("sorted:\n%s\nwant\n%s", got, want)
	}
	if wrong := got.Wrong(); len(wrong) != 4 || wrong.Has(SourceNote) || got.Count(Error) != 3 {
		t.Errorf("wrong:\n%s\nerrors %d", wrong, got.Count(Error))
	}
}

// A condition in one line has the code, the object, the message and the remedy.
func TestConditionText(t *testing.T) {
	for want, c := range map[string]Condition{
		"TableNearlyFull: slots: 9 of 10: raise --max-slots": TableNearlyFull.New("%d of %d", 9, 10).At("slots").Do("raise --%s", "max-slots"),
		"AddressTaken: taken: change one of them":            AddressTaken.New("taken"),
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
