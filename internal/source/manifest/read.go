// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"beeline.io/beeline/internal/source"
)

// limits bound what is read, so that a wrong path does not eat the node.
type limits struct {
	file   int64 // bytes of one file
	folder int64 // bytes of all files together
	marks  int   // line ends, commas and colons of one document: see structureMarks
	alias  int64 // values that YAML aliases of one file may repeat
	report int   // problems, of one file and of all together
}

// The defaults. 5,000 Services with 10 endpoints each are 12 MB in one file,
// and 1.3 million marks if they are one List.
var defaultLimits = limits{
	file:   64 << 20,
	folder: 256 << 20,
	marks:  4 << 20,
	alias:  100_000,
	report: 1000,
}

// entry is one file to read, and what stat says of it: two equal lists of
// entries mean that nothing changed in between.
type entry struct {
	name string // as problems call it: the name in the folder
	path string
	stat stat
	// linked: the name is a symbolic link, and others may change together with it.
	linked bool
	folder uint64 // the inode of the folder; 0: it is the one file
}

type stat struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	mode         fs.FileMode
	err          string
}

// list returns the files that count, sorted by name.
func list(path string) ([]entry, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return []entry{{name: path, path: path, stat: statOf(fi)}}, nil
	}
	folder := statOf(fi).ino
	des, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	entries := []entry{}
	for _, de := range des {
		if !isManifest(de.Name()) {
			continue
		}
		e := entry{name: de.Name(), path: filepath.Join(path, de.Name()), folder: folder, linked: de.Type()&fs.ModeSymlink != 0}
		// Symbolic links are followed: a mounted ConfigMap consists of them.
		switch fi, err := os.Stat(e.path); {
		case err != nil:
			e.stat.err = describe(err)
		case fi.IsDir():
			continue
		default:
			e.stat = statOf(fi)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// isManifest leaves out hidden files and what editors leave behind: x.yaml~,
// #x.yaml#, .x.yaml.swp, x.yaml.bak.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func statOf(fi fs.FileInfo) stat {
	st := stat{size: fi.Size(), mode: fi.Mode()}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok {
		st.dev, st.ino = sys.Dev, sys.Ino
		st.mtime, st.ctime = sys.Mtim, sys.Ctim
	}
	return st
}

func totalSize(entries []entry) int64 {
	var size int64
	for _, e := range entries {
		size += e.stat.size
	}
	return size
}

// file is what one file holds.
type file struct {
	name     string
	stat     stat
	read     time.Time
	sum      [sha256.Size]byte // of the content; zero if it could not be read
	objects  []placed
	problems source.Problems
}

// readEntry reads and decodes a file, or returns old if that has the same content.
func readEntry(e entry, old *file, heard news, lim limits) *file {
	if old != nil && old.unchanged(e, heard) {
		return old
	}
	now := time.Now()
	data, err := readFile(e, lim.file)
	if err != nil {
		return &file{name: e.name, problems: source.Problems{{File: e.name, Reason: err.Error()}}}
	}
	sum := sha256.Sum256(data)
	if old != nil && old.sum == sum {
		same := *old
		same.stat, same.read = e.stat, now
		return &same
	}
	f := parse(e.name, data, lim)
	f.stat, f.read, f.sum = e.stat, now, sum
	return f
}

// unchanged says that the file need not be read again: it was read, and stat
// says the same of it as then. The times of a file that has just been written
// may not tell a second write from the first; but that would be heard of.
func (f *file) unchanged(e entry, heard news) bool {
	const granularity = 2 * time.Second
	return f.sum != [sha256.Size]byte{} && f.stat == e.stat &&
		(!heard.of(e.name) || f.read.Sub(time.Unix(f.stat.ctime.Unix())) > granularity)
}

// readTimeout bounds the wait for a file's content.
const readTimeout = 5 * time.Second

// readFile reads a regular file. Anything else could block for ever (a named
// pipe) or do something by being opened (a device), so it looks first; it looks
// again afterwards because the name may have changed hands, and opens without
// blocking for the same reason.
func readFile(e entry, limit int64) ([]byte, error) {
	if e.stat.err != "" {
		return nil, errors.New(e.stat.err)
	}
	if err := checkRegular(e.stat.mode); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(e.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New(describe(err))
	}
	defer f.Close()
	// Some files of /proc look regular and never end to wait. Those of a disk know
	// no deadline, and need none.
	_ = f.SetReadDeadline(time.Now().Add(readTimeout))
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.New(describe(err))
	}
	if err := checkRegular(fi.Mode()); err != nil {
		return nil, err
	}
	tooLarge := fmt.Errorf("larger than %d bytes, the most that is read of one file; split it", limit)
	if fi.Size() > limit {
		return nil, tooLarge
	}
	// The size is only what to expect: the file may grow.
	data := bytes.NewBuffer(make([]byte, 0, fi.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, errors.New(describe(err))
	}
	if int64(data.Len()) > limit {
		return nil, tooLarge
	}
	if data.Len() == 0 {
		// So does a file look whose writer has just begun.
		return nil, errors.New("is empty: remove it if that is meant, or write a comment into it")
	}
	return data.Bytes(), nil
}

func checkRegular(mode fs.FileMode) error {
	what := ""
	switch {
	case mode.IsRegular():
		return nil
	case mode&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	default:
		what = "of type " + mode.Type().String()
	}
	return fmt.Errorf("is %s; only regular files are read: remove it, or give it a name that does not end in .yaml, .yml or .json", what)
}

// describe leaves out the path, which the problem names already.
func describe(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "cannot be read: the file that it links to does not exist; restore that, or remove the link"
	case errors.Is(err, fs.ErrPermission):
		return "cannot be read: permission denied; make it readable for the agent"
	case errors.Is(err, syscall.ELOOP):
		return "cannot be read: it links to itself; remove the link"
	}
	return "cannot be read: " + err.Error()
}

func describeListError(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file or folder; create it (an empty folder is a state without objects)"
	case errors.Is(err, fs.ErrPermission):
		return "cannot be read: permission denied; make it readable for the agent"
	}
	return "cannot be read: " + err.Error()
}

// parallel calls f for 0 to n-1, on all processors.
func parallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
