// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ioUring makes an io_uring, whose descriptor is all that shows it: it is not mapped. It calls the C library's own
// syscall(3), because the preload library refuses that.
const ioUring = `
import ctypes, time
fd = ctypes.CDLL("libc.so.6", use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))
assert fd >= 0, ctypes.get_errno()
time.sleep(600)`

// notAPage maps memory that is named as a page is, with a program's own content.
const notAPage = `
import mmap, os, time
fd = os.memfd_create("beeline-hoststack", 0)
os.truncate(fd, 4096 + 4096 * 64)
page = mmap.mmap(fd, 0)
page[:20] = b"gpeb" + b"\1\0\0\0" + b"\0\x10\4\0" + b"\x40\0\0\0" + b"\0\x10\0\0"
time.sleep(600)`

// absurdPage maps a page as the library would, fills it with numbers that cannot be, and has a name that clears the
// terminal.
const absurdPage = `
import fcntl, mmap, os, time
fd = os.memfd_create("beeline-hoststack", os.MFD_ALLOW_SEALING)
os.truncate(fd, 4096 + 4096 * 64)
fcntl.fcntl(fd, 1033, 7)
page = mmap.mmap(fd, 0)
page[:] = b"\xff" * len(page)
page[:20] = b"gpeb" + b"\1\0\0\0" + b"\0\x10\4\0" + b"\x40\0\0\0" + b"\0\x10\0\0"
open("/proc/self/comm", "w").write("\x1b[2Jx\r")
time.sleep(600)`

// folder is a folder that every user can enter, unlike those of testing.T.
func (w *world) folder() string {
	w.t.Helper()
	folder, err := os.MkdirTemp("", "beeline-hoststack-")
	w.must(err)
	w.t.Cleanup(func() { os.RemoveAll(folder) })
	w.must(os.Chmod(folder, 0o755))
	return folder
}

// compile makes a program that sleeps.
func (w *world) compile(folder, name string, flags ...string) string {
	w.t.Helper()
	path := filepath.Join(folder, name)
	cmd := exec.CommandContext(w.t.Context(), "cc", append(flags, "-x", "c", "-o", path, "-")...)
	cmd.Stdin = strings.NewReader("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("cc: %v\n%s", err, out)
	}
	return path
}

// goProgram is a static program of Go that does not end.
func (w *world) goProgram() []string {
	return []string{program, "status", "--watch", "--agent-socket", w.agent.Socket()}
}

// setUserID copies sleep(1) and gives it the set-user-ID bit.
func (w *world) setUserID(folder string) string {
	w.t.Helper()
	text, err := os.ReadFile("/bin/sleep")
	w.must(err)
	path := filepath.Join(folder, "sleep")
	w.must(os.WriteFile(path, text, 0o755))
	w.must(os.Chmod(path, 0o755|os.ModeSetuid))
	return path
}
