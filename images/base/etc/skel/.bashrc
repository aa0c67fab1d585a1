# Read by interactive shells. Starts no process: colours are the programs' own defaults, not those of dircolors.
case $- in
  *i*) ;;
  *) return ;;
esac
HISTCONTROL=ignoreboth
HISTSIZE=1000
HISTFILESIZE=2000
shopt -s histappend checkwinsize
case ${TERM-} in
  *color* | xterm* | screen* | tmux*)
    PS1='\[\e[01;32m\]\u@\h\[\e[00m\]:\[\e[01;34m\]\w\[\e[00m\]\$ '
    alias ls='ls --color=auto'
    alias grep='grep --color=auto'
    ;;
esac
