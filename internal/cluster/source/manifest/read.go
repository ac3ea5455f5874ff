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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"beeline.io/beeline/internal/cluster/source"
)

// limits bound what is read, so that a wrong path does not exhaust the node's memory.
type limits struct {
	file   int64 // bytes of one file
	folder int64 // bytes of all files together
	marks  int   // line ends, commas and colons of one document: see structureMarks
	alias  int64 // values that YAML aliases of one file may repeat
	report int   // problems, of one file and of all together
	// noAnnotations: annotations beeline.io/... of Services, EndpointSlices and Pods are not read.
	noAnnotations bool
}

// defaultLimits are sufficient for 5,000 Services with 10 endpoints each, which take 12 MB in one file, and 1.3
// million marks in one List.
var defaultLimits = limits{
	file:   64 << 20,
	folder: 256 << 20,
	marks:  4 << 20,
	alias:  100_000,
	report: 1000,
}

// entry is a file to read with its stat data: equal lists of entries mean that nothing changed.
type entry struct {
	name string // file name in the directory, used in problems
	path string
	stat stat
	// linked means that the name is a symbolic link, so that other entries may change together with it.
	linked bool
	folder uint64 // inode of the directory; 0 for a single file
}

// single reports that the file is the one that --manifests names.
func (e *entry) single() bool { return e.folder == 0 }

type stat struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
	mode         fs.FileMode
	err          string
}

// list returns the manifest files, sorted by name.
func list(path string) ([]entry, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		link, err := os.Lstat(path)
		return []entry{{name: path, path: path, stat: statOf(fi), linked: err == nil && link.Mode()&fs.ModeSymlink != 0}}, nil
	}
	folder := statOf(fi).ino
	des, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	des = slices.DeleteFunc(des, func(de fs.DirEntry) bool { return !isManifest(de.Name()) })
	entries := make([]entry, len(des))
	parallel(len(des), func(i int) {
		de := des[i]
		entries[i] = entry{name: de.Name(), path: filepath.Join(path, de.Name()), folder: folder, linked: de.Type()&fs.ModeSymlink != 0}
		// A mounted ConfigMap consists of symbolic links, so follow them.
		if fi, err := os.Stat(entries[i].path); err != nil {
			entries[i].stat.err = entries[i].describe(err)
		} else {
			entries[i].stat = statOf(fi)
		}
	})
	return slices.DeleteFunc(entries, func(e entry) bool { return e.stat.mode.IsDir() || e.stat.err == vanished }), nil
}

// isManifest excludes hidden files and editors' backup files: x.yaml~, #x.yaml#, .x.yaml.swp, x.yaml.bak.
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

// file is the content of one file.
type file struct {
	name     string
	stat     stat
	read     time.Time
	sum      [sha256.Size]byte // of the content; zero if it could not be read
	objects  []placed
	problems source.Problems
}

// readEntry reads and decodes a file, or returns old if the content is the same.
func readEntry(e entry, old *file, changed changes, lim limits) *file {
	if old != nil && old.unchanged(e, changed) {
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

// unchanged reports that the file need not be read again: it was read, and its stat data is the same. The times
// of a file that was just written may not show a second write, but that causes a notification.
func (f *file) unchanged(e entry, changed changes) bool {
	const granularity = 2 * time.Second
	return f.sum != [sha256.Size]byte{} && f.stat == e.stat &&
		(!changed.of(e.name) || f.read.Sub(time.Unix(f.stat.ctime.Unix())) > granularity)
}

// readTimeout bounds the time to read a file's content.
const readTimeout = 5 * time.Second

// readFile reads a regular file. Other types could block forever (a named pipe) or have side effects when
// opened (a device), so it checks the type first. It opens with O_NONBLOCK and checks again afterwards, because
// the name may have changed meanwhile.
func readFile(e entry, limit int64) ([]byte, error) {
	if e.stat.err != "" {
		return nil, errors.New(e.stat.err)
	}
	if err := e.checkRegular(e.stat.mode); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(e.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New(e.describe(err))
	}
	defer f.Close()
	// Some files of /proc look regular and block forever. Files on a disk do not support deadlines and need
	// none.
	_ = f.SetReadDeadline(time.Now().Add(readTimeout))
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.New(e.describe(err))
	}
	if err := e.checkRegular(fi.Mode()); err != nil {
		return nil, err
	}
	tooLarge := fmt.Errorf("larger than the limit of %d bytes for one file; split it", limit)
	if fi.Size() > limit {
		return nil, tooLarge
	}
	// The size is only a hint, because the file may grow.
	data := bytes.NewBuffer(make([]byte, 0, fi.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, errors.New(e.describe(err))
	}
	if int64(data.Len()) > limit {
		return nil, tooLarge
	}
	// A file that is being written also looks empty.
	switch {
	case data.Len() > 0:
	case e.single():
		return nil, errors.New("is empty: write a comment into it if it is meant to be empty")
	default:
		return nil, errors.New("is empty: remove it, or write a comment into it if it is meant to be empty")
	}
	return data.Bytes(), nil
}

func (e *entry) checkRegular(mode fs.FileMode) error {
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
	if e.single() {
		return fmt.Errorf("is %s; only regular files are read: set --manifests to one, or to a directory", what)
	}
	return fmt.Errorf("is %s; only regular files are read: remove it, or give it a name that does not end in .yaml, .yml or .json", what)
}

// vanished is the error of a file that was removed since its directory was listed. The next list does not have it.
const vanished = "was removed while it was read"

// describe returns an error without the path, which the problem already contains.
func (e *entry) describe(err error) string {
	if errors.Is(err, fs.ErrNotExist) && !e.linked {
		return vanished
	}
	return describe(err)
}

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
	case errors.Is(err, syscall.ENOTDIR):
		return "cannot be read: a part of the path is no directory; correct --manifests"
	case errors.Is(err, syscall.ELOOP):
		return "cannot be read: it links to itself; remove the link"
	}
	return "cannot be read: " + err.Error()
}

// describeListError says why the path of --manifests cannot be read.
func describeListError(path string, err error) string {
	_, missing := os.Lstat(path)
	switch {
	case !errors.Is(err, fs.ErrNotExist), missing == nil: // in the latter case a link to nothing
		return describe(err)
	case isManifest(filepath.Base(path)):
		return "no such file; create it, or correct --manifests (a file with only a comment is a valid state without objects)"
	}
	return "no such file or directory; create it, or correct --manifests (an empty directory is a valid state without objects)"
}

// inTurn calls f for 0 to n-1.
func inTurn(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// parallel calls f for 0 to n-1, on all processors.
func parallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	if workers <= 1 {
		inTurn(n, f)
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
