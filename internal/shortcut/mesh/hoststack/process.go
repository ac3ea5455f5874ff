// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what is read of a process.
const (
	maxMaps        = 16 << 20
	maxDescriptors = 65536
)

// libraryName is in the path of the library's file.
const libraryName = "libbeeline_hoststack"

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
	permissions        string
	device, inode      uint64
	path               string
}

// mappings are what the mappings of a process tell.
type mappings struct {
	library bool
	pages   []mapping // named as pages are
	ioUring bool
}

const ioUringName = "anon_inode:[io_uring]"

// readMappings reads /proc/PID/maps.
func readMappings(pid int) (m mappings, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return m, err
	}
	defer f.Close()
	return scanMappings(io.LimitReader(f, maxMaps))
}

func scanMappings(r io.Reader) (m mappings, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.Contains(line, []byte(pageName)):
			if one, ok := parseMapping(string(line)); ok && strings.HasPrefix(one.path, pageName) {
				m.pages = append(m.pages, one)
			}
		case bytes.Contains(line, []byte(ioUringName)):
			m.ioUring = true
		case bytes.Contains(line, []byte(libraryName)):
			m.library = true
		}
	}
	return m, lines.Err()
}

// parseMapping parses a line such as
// "7f00-7f10 rw-s 00000000 00:01 123   /memfd:name (deleted)".
func parseMapping(line string) (m mapping, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 {
		return m, false
	}
	var major, minor uint32
	_, err := fmt.Sscanf(strings.Join(fields[:5], " "), "%x-%x %s %x %x:%x %d", &m.start, &m.end, &m.permissions, &m.offset, &major, &minor, &m.inode)
	m.device = unix.Mkdev(major, minor)
	m.path = strings.Join(fields[5:], " ")
	return m, err == nil
}

// nameOf returns what the process calls itself. It may be anything.
func nameOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSuffix(string(text), "\n")
}

// ownNumber returns the number of a process in its own PID namespace.
func ownNumber(pid int) (uint32, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		// A name cannot begin a line: the kernel escapes line breaks.
		if numbers, found := strings.CutPrefix(line, "NSpid:"); found {
			all := strings.Fields(numbers)
			if len(all) == 0 {
				break
			}
			n, err := strconv.ParseUint(all[len(all)-1], 10, 32)
			return uint32(n), err
		}
	}
	return 0, errors.New("/proc/PID/status has no NSpid")
}

// hasIOUring reports whether a process has a descriptor of an io_uring(7).
func hasIOUring(pid int) bool {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	f, err := os.Open(folder)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxDescriptors)
	for _, name := range names {
		if target, err := os.Readlink(folder + "/" + name); err == nil && target == ioUringName {
			return true
		}
	}
	return false
}
