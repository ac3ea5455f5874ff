// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// beeline is the program in the image. toolFolder is for programs that the tests build.
var beeline, toolFolder string

func TestMain(m *testing.M) {
	lab.Main()
	// The source in this process lists and then watches, as with Kubernetes before 1.34.
	os.Setenv("KUBE_FEATURE_WatchListClient", "false")
	folder, err := os.MkdirTemp("", "beeline-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	toolFolder = folder
	exit := node.Run(m, &beeline)
	os.RemoveAll(folder)
	os.Exit(exit)
}

// patience bounds all waiting. No result depends on it.
const patience = time.Minute

// sources is the path of a file of Beeline's sources.
func sources(t *testing.T, path string) string {
	t.Helper()
	root, err := node.Sources()
	must(t, err)
	return filepath.Join(root, path)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return text
}

// eventually polls until ok returns nil.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for this: %s: %v", patience, what, err)
		}
	}
}
