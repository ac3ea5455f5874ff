// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

// partOwner is this binary started again: it creates a cluster in the lab argv[1], prints ready and waits.
const partOwner = "cluster-test-owner"

func ownAndWait(name string) error {
	l, err := lab.Up(lab.Config{Name: name, Temporary: true})
	if err != nil {
		return err
	}
	c, err := Start(context.Background(), l)
	if err != nil {
		return err
	}
	if _, err := c.StartKubeProxy(context.Background(), l.Host("node-a")); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.ReadAll(os.Stdin)
	return err
}

// Nothing of a cluster outlives a killed test.
func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	needs.Root(t)
	name := fmt.Sprintf("killed-%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Errorf("taking lab %s down: %v", name, err)
		}
	})
	owner := exec.CommandContext(t.Context(), "/proc/self/exe")
	owner.Args, owner.Stderr = []string{partOwner, name}, os.Stderr
	out, err := owner.StdoutPipe()
	must(t, err)
	_, err = owner.StdinPipe() // it waits until this is closed
	must(t, err)
	must(t, owner.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the owner did not become ready: %q (%v)", line, err)
	}
	l, err := lab.Open(name)
	must(t, err)
	if processes := processesOf(t, l); len(processes) < 4 {
		t.Fatalf("the cluster's processes are %v: the test proves nothing", processes)
	}
	must(t, owner.Process.Kill())
	owner.Wait()
	eventually(t, "the cluster's processes end", func() error {
		if processes := processesOf(t, l); len(processes) > 0 {
			return fmt.Errorf("processes %v", processes)
		}
		return nil
	})
}

// processesOf lists the processes in all cgroups of a lab.
func processesOf(t *testing.T, l *lab.Lab) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(l.CgroupRoot, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, strings.Fields(string(text))...)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}
