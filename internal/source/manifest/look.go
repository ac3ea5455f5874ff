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

	"beeline.io/beeline/internal/source"
)

// A read looks for a moment in which no file changes.
const (
	attempts      = 8 // if files change in place or many at once, which may be seen half done
	stillAttempts = 3 // if they are only added, replaced and removed
)

// readAll reads all files; failed says why that cannot be. Files that change while it reads would mix two states,
// so it looks at them before and after, and reads those that did again. Where
// whole files come and go all the time it takes what it has: each file is one
// that was there, the next read follows at once, and to stand still would be
// worse.
func (s *Source) readAll(heard news) (failed source.Problems) {
	before, err := list(s.path)
	for i := 0; i < attempts; i++ {
		if err != nil {
			s.folder = 0
			return source.Problems{{File: s.path, Reason: describeListError(err)}}
		}
		if size := totalSize(before); size > s.limits.folder {
			s.folder = 0
			return source.Problems{{
				File:   s.path,
				Reason: fmt.Sprintf("files of %d bytes together; at most %d are read: remove what is not needed", size, s.limits.folder),
			}}
		}
		if i == 0 && s.same(before, heard) {
			return nil
		}
		s.folder = 0
		s.readEntries(before, heard)
		s.whileReading()
		heard = news{} // what looks the same from here on is the same
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
		Reason: fmt.Sprintf("changed each of %d times while it was being read; "+
			"write files under a hidden name and rename them when they are complete", attempts),
	}}
}

// same says whether a list is that of the last look at all files, which nothing changed
// during, and there is nothing to read.
func (s *Source) same(entries []entry, heard news) bool {
	return s.folder != 0 && len(entries) == len(s.files) && !slices.ContainsFunc(entries, func(e entry) bool {
		f := s.files[e.name]
		return e.folder != s.folder || f == nil || !f.unchanged(e, heard)
	})
}

// replacedOneByOne says whether all that differs between two lists is whole
// files that came, went or took another's place, each by itself. It is not so
// where a file was written to, and where a link or the folder is another one now
// and changes many files at once. The lists are sorted by name.
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

// readEntries reads the files listed.
func (s *Source) readEntries(entries []entry, heard news) {
	files := make([]*file, len(entries))
	parallel(len(entries), func(i int) {
		files[i] = readEntry(entries[i], s.files[entries[i].name], heard, s.limits)
	})
	s.files = make(map[string]*file, len(files))
	for _, f := range files {
		s.files[f.name] = f
	}
}

// readSome reads the files that were heard of, and leaves the others as they are. It says
// whether that is enough. It is not where links may lead elsewhere, where the folder is
// another one than at the last look at all of it, and where these files change meanwhile:
// then all are looked at.
func (s *Source) readSome(heard news) bool {
	if heard.all || s.folder == 0 {
		return false
	}
	before, gone, ok := s.some(heard.names)
	if !ok {
		return false
	}
	files, size := make([]*file, len(before)), s.size
	for i, e := range before {
		files[i] = readEntry(e, s.files[e.name], heard, s.limits)
		size += e.stat.size
	}
	for name := range heard.names {
		if old := s.files[name]; old != nil {
			size -= old.stat.size
		}
	}
	after, goneAfter, ok := s.some(heard.names)
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

// some is list for some names, sorted, and which of them are not there. ok is false where
// only list can tell.
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
