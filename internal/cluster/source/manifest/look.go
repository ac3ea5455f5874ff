// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"beeline.io/beeline/internal/cluster/source"
)

// Maximum number of reads: a read is repeated until no file changes during it.
const (
	attempts      = 8 // if files change in place or many at once, which may be seen half done
	stillAttempts = 3 // if files are only added, replaced and removed
)

// readAll reads all files; failed is why it cannot. Files that change during the read would mix two states, so
// it lists the files before and after, and rereads those that changed. If whole files are constantly added and
// removed, it accepts the result: each file existed, the next read follows at once, and blocking all updates
// would be worse.
func (s *Source) readAll(changed changes) (failed source.Problems) {
	before, err := list(s.path)
	for i := 0; i < attempts; i++ {
		if err != nil {
			s.folder = 0
			return source.Problems{{File: s.path, Reason: describeListError(s.path, err)}}
		}
		if size := totalSize(before); size > s.limits.folder {
			s.folder = 0
			return source.Problems{{
				File:   s.path,
				Reason: fmt.Sprintf("the files have %d bytes together, more than the limit of %d: remove unneeded files", size, s.limits.folder),
			}}
		}
		if i == 0 && s.same(before, changed) {
			return nil
		}
		s.folder = 0
		s.readEntries(before, changed)
		s.whileReading()
		changed = changes{} // from here on, equal entries mean equal files
		var after []entry
		after, err = list(s.path)
		still := err == nil && slices.Equal(before, after)
		oneByOne := still || replacedOneByOne(before, after)
		if still || err == nil && i+1 >= stillAttempts && oneByOne {
			if s.size = totalSize(before); len(before) > 0 {
				s.folder = before[0].folder
			}
			return nil
		}
		if !oneByOne {
			time.Sleep(time.Duration(i+1) * s.timing.retry)
			after, err = list(s.path)
		}
		before = after
	}
	return source.Problems{{
		File: s.path,
		Reason: fmt.Sprintf("changed during each of %d attempts to read it; "+
			"write files under a hidden name and rename them when they are complete", attempts),
	}}
}

// same reports whether a list equals that of the last complete read during which nothing changed, so that
// nothing needs to be read.
func (s *Source) same(entries []entry, changed changes) bool {
	return s.folder != 0 && len(entries) == len(s.files) && !slices.ContainsFunc(entries, func(e entry) bool {
		f := s.files[e.name]
		return e.folder != s.folder || f == nil || !f.unchanged(e, changed)
	})
}

// replacedOneByOne reports whether two lists differ only in whole files that were added, removed or replaced
// one by one. It returns false if a file was written in place, or if a link or the directory changed, which
// changes many files at once. The lists are sorted by name.
func replacedOneByOne(before, after []entry) bool {
	if len(before) > 0 && len(after) > 0 && before[0].folder != after[0].folder {
		return false
	}
	old := map[string]entry{}
	for _, e := range before {
		old[e.name] = e
	}
	for _, e := range after {
		was, known := old[e.name]
		delete(old, e.name)
		if known && was == e {
			continue
		}
		if e.linked || known && (was.linked || was.stat.ino == e.stat.ino) {
			return false
		}
	}
	for _, e := range old {
		if e.linked {
			return false
		}
	}
	return true
}

// readEntries reads the listed files.
func (s *Source) readEntries(entries []entry, changed changes) {
	files := make([]*file, len(entries))
	parallel(len(entries), func(i int) {
		files[i] = readEntry(entries[i], s.files[entries[i].name], changed, s.limits)
	})
	s.files = make(map[string]*file, len(files))
	for _, f := range files {
		s.files[f.name] = f
	}
}

// readSome reads only the files that changed according to notifications. It returns false if all files must be
// read: if links may have changed, if the directory was replaced since the last complete read, or if these
// files change during the read.
func (s *Source) readSome(changed changes) bool {
	if changed.all || s.folder == 0 {
		return false
	}
	before, gone, ok := s.some(changed.names)
	if !ok {
		return false
	}
	files, size := make([]*file, len(before)), s.size
	for i, e := range before {
		files[i] = readEntry(e, s.files[e.name], changed, s.limits)
		size += e.stat.size
	}
	for name := range changed.names {
		if old := s.files[name]; old != nil {
			size -= old.stat.size
		}
	}
	after, goneAfter, ok := s.some(changed.names)
	if !ok || size > s.limits.folder || !slices.Equal(before, after) || !slices.Equal(gone, goneAfter) {
		return false
	}
	s.size = size
	for _, f := range files {
		s.files[f.name] = f
	}
	for _, name := range gone {
		delete(s.files, name)
	}
	return true
}

// some lists files like list, but only those with the given names, and returns which names do not exist. ok is
// false if only list can decide.
func (s *Source) some(names map[string]bool) (entries []entry, gone []string, ok bool) {
	folder, err := os.Stat(s.path)
	if err != nil || !folder.IsDir() || statOf(folder).ino != s.folder {
		return nil, nil, false
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !isManifest(name) {
			continue
		}
		e := entry{name: name, path: filepath.Join(s.path, name), folder: s.folder}
		fi, err := os.Lstat(e.path)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && fi.IsDir():
			gone = append(gone, name)
			continue
		case err != nil || fi.Mode()&fs.ModeSymlink != 0:
			return nil, nil, false
		}
		e.stat = statOf(fi)
		entries = append(entries, e)
	}
	return entries, gone, true
}
