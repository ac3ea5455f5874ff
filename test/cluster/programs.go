// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"beeline.io/beeline/test/node"
)

// Program is the path of the control plane's program, which make builds: it
// takes minutes where nothing is cached.
func Program() (string, error) {
	folder, err := node.Sources()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "build", "controlplane")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the control plane's program %s is missing: make it with `make controlplane`", path)
	} else if err != nil {
		return "", err
	}
	return path, nil
}
