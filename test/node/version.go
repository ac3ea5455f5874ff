// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// otherDirectories are the directories of tables of the agents of BuildVersions, which no release has.
var otherDirectories = [2]string{"tables_v1000", "tables_v1001"}

// BuildVersions builds two agents into a folder whose tables are in directories of other versions. Their layout is the
// present one. Each migrates the tables of the other, and what this version migrates: so all packages are compiled
// once for both.
func BuildVersions(folder string) (programs [2]string, err error) {
	sources, err := Sources()
	if err != nil {
		return programs, err
	}
	overlay, err := layoutsOverlay(sources, otherDirectories[:])
	if err != nil {
		return programs, err
	}
	defer os.RemoveAll(filepath.Dir(overlay))
	for i, directory := range otherDirectories {
		if programs[i], err = buildVersion(sources, overlay, folder, directory); err != nil {
			break
		}
	}
	return programs, err
}

func buildVersion(sources, overlay, folder, directory string) (program string, err error) {
	program = filepath.Join(folder, "beeline-"+directory)
	out, err := exec.Command("go", "build", "-C", sources, "-overlay", overlay,
		"-ldflags", "-X beeline.io/beeline/internal/bpf.tablesDirectory="+directory, "-o", program, "./cmd/beeline").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build with tables in %s: %w\n%s", directory, err, out)
	}
	return program, nil
}

// layoutsOverlay writes a file for go build -overlay that adds directories to the list of layouts that an agent
// migrates. The caller removes its folder.
func layoutsOverlay(sources string, add []string) (path string, err error) {
	const list = "var layouts = map[string]layout{\n"
	original := filepath.Join(sources, "internal", "bpf", "predecessor.go")
	text, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	before, after, found := strings.Cut(string(text), list)
	if !found {
		return "", fmt.Errorf("%s has no line %q", original, list)
	}
	for _, directory := range add {
		after = fmt.Sprintf("\t%q: {},\n", directory) + after
	}
	folder, err := os.MkdirTemp("", "beeline-overlay-")
	if err != nil {
		return "", err
	}
	changed := filepath.Join(folder, "predecessor.go")
	path = filepath.Join(folder, "overlay.json")
	content, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	return path, errors.Join(err, os.WriteFile(changed, []byte(before+list+after), 0o600), os.WriteFile(path, content, 0o600))
}
