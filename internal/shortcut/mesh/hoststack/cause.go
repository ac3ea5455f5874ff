// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

const maxEnvironment = 1 << 20

// examine returns what is known of why a process has no session, loaded saying whether it has the library. wanted: its
// environment asks for the library.
func examine(pid int, loaded bool) (wanted bool, why string) {
	type result struct {
		wanted bool
		why    string
	}
	r, err := within(pid, func() (r result) {
		if r.wanted = loaded || asksForLibrary(pid); r.wanted {
			r.why = cause(pid, loaded)
		}
		return r
	}, func(result) {})
	if err != nil {
		return true, err.Error()
	}
	return r.wanted, r.why
}

// asksForLibrary reports whether the environment that a program was started with names the library.
func asksForLibrary(pid int) bool {
	for entry := range bytes.SplitSeq(head(fmt.Sprintf("/proc/%d/environ", pid), maxEnvironment), []byte{0}) {
		if value, found := bytes.CutPrefix(entry, []byte("LD_PRELOAD=")); found && bytes.Contains(value, []byte(libraryName)) {
			return true
		}
	}
	return false
}

// head returns the beginning of a file; nothing if it cannot be read.
func head(path string, most int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, most))
	return text
}

// cause says why a program does not use the library, by its file; empty if nothing there says so.
func cause(pid int, loaded bool) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	isGo := false
	if _, err := buildinfo.Read(f); err == nil {
		isGo = true
	}
	if loaded {
		if isGo {
			return "a Go program: its calls do not pass the C library"
		}
		return ""
	}
	if isSecure(pid) {
		return "runs with privileges of its file (set-user-ID, set-group-ID or capabilities): the loader ignores LD_PRELOAD"
	}
	program, err := elf.NewFile(f)
	if err != nil {
		return "not a program of ELF"
	}
	own, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer own.Close()
	return causeOf(program, own, isGo)
}

// causeOf compares a program with one of this machine.
func causeOf(program, own *elf.File, isGo bool) string {
	loader := interpreter(program)
	switch {
	case program.Machine != own.Machine || program.Class != own.Class:
		return fmt.Sprintf("a program of another architecture (%v, %v)", program.Machine, program.Class)
	case loader == "" && isGo:
		return "a static Go program: no loader reads LD_PRELOAD"
	case loader == "":
		return "a static program: no loader reads LD_PRELOAD"
	}
	return "the loader did not load it: see what the program printed when it started; is the file in its container, and readable?"
}

// interpreter returns the loader that a program names; empty if none.
func interpreter(program *elf.File) string {
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			name := make([]byte, p.Filesz)
			if _, err := p.ReadAt(name, 0); err == nil {
				return string(bytes.TrimRight(name, "\x00"))
			}
		}
	}
	return ""
}

// isSecure reports whether the kernel started a program in secure-execution mode (getauxval(3), AT_SECURE).
func isSecure(pid int) bool {
	const atSecure = 23
	vector := head(fmt.Sprintf("/proc/%d/auxv", pid), 4096)
	for ; len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) == atSecure {
			return binary.NativeEndian.Uint64(vector[8:]) != 0
		}
	}
	return false
}
