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

// BuildVersion builds an agent into a folder whose tables are in a directory of another version, as in
// "tables_v1000", which no release has. Its layout is the present one. It migrates the tables of this version, and of
// the earlier ones that are given.
func BuildVersion(folder, directory string, earlier ...string) (program string, err error) {
	sources, err := Sources()
	if err != nil {
		return "", err
	}
	overlay, err := layoutsOverlay(sources, earlier)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(filepath.Dir(overlay))
	program = filepath.Join(folder, "beeline-"+directory)
	out, err := exec.Command("go", "build", "-C", sources, "-overlay", overlay,
		"-ldflags", "-X beeline.io/beeline/internal/datapath.tablesDirectory="+directory, "-o", program, "./cmd/beeline").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build with tables in %s: %w\n%s", directory, err, out)
	}
	return program, nil
}

// layoutsOverlay writes a file for go build -overlay that adds directories to the list of layouts that an agent
// migrates. The caller removes its folder.
func layoutsOverlay(sources string, add []string) (path string, err error) {
	const list = "var layouts = map[string]layout{\n"
	original := filepath.Join(sources, "internal", "datapath", "predecessor.go")
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
