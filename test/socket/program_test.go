// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// wantProgram ends the test if the program under test is missing.
func wantProgram(t *testing.T, name, debianPackage string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v: install the package %s, or everything the tests need with scripts/setup", err, debianPackage)
	}
}

// etc are the files that a program finds in /etc instead of the machine's.
type etc map[string]string

// partEtc is the name of the process that mounts them, in a mount namespace of its own, and then becomes the
// program.
const partEtc = "beeline-test-etc"

// execute runs a program on a host to its end. If it fails, the error contains its output.
func execute(t *testing.T, from *lab.Host, files etc, argv ...string) (out, errOut string, err error) {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	return executeAs(t, from, files, path, argv...)
}

// executeAs is execute with a path that differs from argv[0].
func executeAs(t *testing.T, from *lab.Host, files etc, path string, argv ...string) (out, errOut string, err error) {
	t.Helper()
	needsPrivateMounts(t)
	folder := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := from.Command(ctx, "/proc/self/exe")
	cmd.Args = append([]string{partEtc, folder, path}, argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // so its mounts are private
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%s on %s: %w; it printed:\n%s%s", strings.Join(argv, " "), from.Name, err, &stdout, &stderr)
	}
	return stdout.String(), stderr.String(), err
}

// needsPrivateMounts skips a test if a process cannot have mounts of its own.
func needsPrivateMounts(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == "/" {
			return
		}
	}
	t.Skip("the root directory is no mount point (chroot), so mounts cannot be private")
}

// runWithEtc is the process.
func runWithEtc(folder, path string, argv []string) {
	runtime.LockOSThread()
	files, err := os.ReadDir(folder)
	for _, f := range files {
		target := filepath.Join("/etc", f.Name())
		if _, missing := os.Stat(target); errors.Is(missing, fs.ErrNotExist) && f.Name() == "nsswitch.conf" {
			continue // the C library's default is to ask DNS
		}
		if err == nil {
			err = os.NewSyscallError("mount "+target, unix.Mount(filepath.Join(folder, f.Name()), target, "", unix.MS_BIND, ""))
		}
	}
	if err == nil {
		err = os.NewSyscallError("execve "+path, unix.Exec(path, argv, os.Environ()))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
